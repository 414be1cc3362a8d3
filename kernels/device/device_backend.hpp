#pragma once

#include <string>

#include "kernels/device/copy_queues.hpp"
#include "kernels/device/slab_source.hpp"

namespace kvd::kernels {

/// A device: memory that other processes can map, and the queues that move bytes between tiers.
/// Source:  kvd/DESIGN.md "Bytes on their way", "Safety rules".
/// Owner:   the control thread calls everything; submit, poll, the counters, and all that makes,
/// exports, reads and ends slabs are thread-safe.
/// Errors:  OutOfMemory when the tier has no memory left; InvalidArgument for a size that is not a
/// multiple of granularity() or a bad batch; NotFound for an unknown slab; WouldBlock for a slab
/// still in use; DeviceError when the device failed. Never throws.
/// A slab is in use until poll() has handed out the last batch that touches it, and while
/// read_slab() looks at it. Destruction ends the copy queues: batches that have not started are
/// dropped, and their fences stay unwritten.
class DeviceBackend : public SlabSource, public CopyQueues {
 public:
  /// One word for metrics and logs: "host", "cuda".
  [[nodiscard]] virtual std::string kind() const = 0;
  [[nodiscard]] DeviceCounters counters() const { return book().counters(); }

 protected:
  DeviceBackend() : CopyQueues(book()) {}
};

}  // namespace kvd::kernels
