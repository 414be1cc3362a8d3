#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::kernels {

/// The two copy queues of a device. Each runs its batches in order; the two run at once.
enum class Direction : std::uint8_t { kHostToDevice = 0, kDeviceToHost = 1 };
constexpr std::size_t kDirections = 2;
constexpr const char* name(Direction d) { return d == Direction::kHostToDevice ? "h2d" : "d2h"; }

/// What backs a slab's pages, in the order the host backend tries them.
enum class PageKind : std::uint8_t { kHugetlb, kTransparentHuge, kSmall, kDevice };
constexpr const char* name(PageKind kind) {
  constexpr const char* kNames[] = {"hugetlb", "thp", "4k", "device"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// Names one live slab of a backend; never reused while the backend lives.
using SlabHandle = Id<struct SlabHandleTag, std::uint64_t>;

/// One physical allocation of a tier, mapped where the backend's copy queues can reach it.
struct Slab {
  SlabHandle handle;
  Tier tier = Tier::kHbm;
  Bytes size;
  /// Address in the copy queues' address space: a host pointer, or a CUdeviceptr for HBM on CUDA.
  std::uintptr_t address = 0;
  PageKind pages = PageKind::kSmall;
};

/// `length` bytes from `source` to `destination`. Source 0 writes zeros (scrubbing).
struct CopyExtent {
  std::uintptr_t destination = 0;
  std::uintptr_t source = 0;
  Bytes length;
};

/// A fence word in host memory shared with one client. The backend stores `value` with release
/// order after every byte of the batch is complete and never before (safety rule 1).
struct Fence {
  std::atomic<std::uint64_t>* word = nullptr;  ///< null: nobody waits on this batch
  std::uint64_t value = 0;
};

/// Copies that complete together. Extents of one batch have no order among themselves and must not
/// overlap; batches of one direction complete in order.
struct CopyBatch {
  Ticket ticket;
  Direction direction = Direction::kHostToDevice;
  std::vector<CopyExtent> extents;
  Fence fence;
};

/// A batch that ended. After a failure none of its destination bytes may be trusted and its fence
/// was not written.
struct Completion {
  Ticket ticket;
  Status status;
  Bytes bytes;
  Nanoseconds busy{0};  ///< time the queue worked on this batch, for the measured link rate
};

/// Obtains memory that other processes can map, and moves bytes between tiers.
/// Source:  kvd design (architecture sections 4-6); CUDA facts in the design's references.
/// Owner:   control thread calls everything; submit, poll and the counters are thread-safe.
/// Errors:  OutOfMemory when the tier has no memory left; InvalidArgument for a size that is not a
///          multiple of granularity(); DeviceError when the device failed. Never throws.
/// A slab may be destroyed only when no queued batch touches it (KVD_CHECKed).
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  /// Slab sizes of `tier` must be multiples of this.
  [[nodiscard]] virtual Bytes granularity(Tier tier) const = 0;
  /// A zeroed, populated slab.
  [[nodiscard]] Result<Slab> create_slab(Tier tier, Bytes size);
  [[nodiscard]] Status destroy_slab(SlabHandle handle);
  /// A new close-on-exec descriptor through which a peer maps the slab. Possession of it is the
  /// right to the memory: send it only to a checked peer.
  [[nodiscard]] Result<UniqueFd> export_slab(SlabHandle handle);

  /// Queues a batch; never blocks on the copy. Extents must lie within live slabs.
  [[nodiscard]] Status submit(CopyBatch batch);
  /// Appends finished batches in completion order per direction; returns at once.
  virtual void poll(std::vector<Completion>& completed) = 0;
  /// Readable while poll() has something to say; for the daemon's event loop.
  [[nodiscard]] virtual int completion_fd() const = 0;
  /// Changes the simulated link rate (host backend, `link.bandwidth`); zero lifts the throttle.
  virtual void set_link_bandwidth(BytesPerSecond) {}
  /// One word for metrics and logs: "host", "cuda".
  [[nodiscard]] virtual std::string kind() const = 0;

 protected:
  DeviceBackend() = default;
  virtual Result<Slab> do_create_slab(Tier tier, Bytes size) = 0;
  virtual Status do_destroy_slab(SlabHandle handle) = 0;
  virtual Result<UniqueFd> do_export_slab(SlabHandle handle) = 0;
  virtual Status do_submit(CopyBatch batch) = 0;
};

}  // namespace kvd::kernels
