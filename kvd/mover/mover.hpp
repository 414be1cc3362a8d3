#pragma once

#include <vector>

#include "kernels/device/device_backend.hpp"
#include "kvd/core/effects.hpp"
#include "kvd/mover/slab_store.hpp"

namespace kvd::mover {

/// Turns the Controller's copies of slots into copies of bytes: addresses instead of ids, the
/// longest runs, one queue a direction.
/// Source: kvd design (architecture section 4); SuperInfer sec. 5 for merging runs.
/// Owner:  control thread.
class Mover {
 public:
  /// Both must outlive the mover.
  Mover(kernels::DeviceBackend& backend, const SlabStore& slabs)
      : backend_(&backend), slabs_(&slabs) {}

  /// Queues the copy; `fence` of its engine gets the ticket when every byte is there. A copy the
  /// device refuses comes back from poll() as failed.
  void copy(const core::CopySlots& copy, std::atomic<std::uint64_t>* fence);
  void scrub(const core::Scrub& scrub);

  /// Appends what has finished since the last call.
  void poll(std::vector<core::CopyFinished>& finished);

 private:
  void submit(kernels::CopyBatch batch);

  kernels::DeviceBackend* backend_;
  const SlabStore* slabs_;
  std::vector<kernels::Completion> completions_;
  std::vector<core::CopyFinished> refused_;
};

}  // namespace kvd::mover
