#pragma once

#include <cstddef>
#include <memory>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::client {

/// A stretch of this process's addresses into which slabs are mapped, each as a whole. Destruction
/// unmaps them. Precondition: nothing uses them any more; see SlabMemory::quiesce().
/// Owner:   whoever holds it; not thread-safe
/// Errors:  OutOfMemory with the limit to look at, InvalidArgument, DeviceError
class SlabRange {
 public:
  virtual ~SlabRange() = default;

  /// Maps the slab behind the descriptor, `size` bytes, at `offset`; the fd may be closed after.
  virtual Status map(Bytes offset, Bytes size, const UniqueFd& slab) = 0;
  /// Once everything is mapped and before anything touches it. Precondition: no gap.
  virtual Status open() { return {}; }

  // A range whose slabs come and go uses these in place of the two above.
  /// Puts one slab of this process's own behind all addresses without memory, and behind those that
  /// are unmapped later, where a stray access to them would end the device's context. Comes first.
  virtual Status back_gaps(Bytes /*slab*/) { return {}; }
  /// Maps the memory at `from_offset` of another range here as well, ready to be used.
  /// Precondition: nothing is mapped here.
  virtual Status map_from(Bytes offset, Bytes size, const SlabRange& from, Bytes from_offset) = 0;
  /// Maps a slab of this process's own, of zeros. Precondition: nothing stands here.
  virtual Status map_own(Bytes offset, Bytes size) = 0;
  /// Unmaps the slab; its addresses stay reserved.
  virtual Status unmap(Bytes offset, Bytes size) = 0;

  /// The daemon is gone: gives its memory back at once and puts private zeros in its place, while
  /// others still read and write there. False: that cannot be done here.
  virtual bool forsake() { return false; }

  /// A pointer into host memory, or a device pointer to a GPU's memory, which no CPU instruction
  /// may follow.
  [[nodiscard]] virtual std::byte* data() const = 0;
  [[nodiscard]] virtual Bytes size() const = 0;
  /// The GPU it is memory of, by this process's count; kNoDevice: host memory.
  [[nodiscard]] virtual int device() const { return kNoDevice; }

  static constexpr int kNoDevice = -1;

 protected:
  SlabRange() = default;
  SlabRange(const SlabRange&) = default;
  SlabRange& operator=(const SlabRange&) = default;
};

/// How the slabs of one daemon become memory of this process.
/// Owner:   thread-safe
class SlabMemory {
 public:
  virtual ~SlabMemory() = default;
  /// Addresses for `size` bytes at a multiple of `alignment`, backed by nothing yet.
  virtual Result<std::unique_ptr<SlabRange>> reserve(Bytes size, Bytes alignment) = 0;
  /// Waits until all that this process has given the device is done; with host memory there is
  /// nothing to wait for. Precondition: mappings are not held, see MappingHold. Errors:
  /// DeadlineExceeded; WouldBlock where somebody captures a graph nevertheless, which this has
  /// ended.
  virtual Status quiesce(Nanoseconds limit) = 0;
};

/// Slabs that are memfds.
std::shared_ptr<SlabMemory> host_memory();
/// What a program has that maps nothing: each attempt is InvalidArgument.
std::shared_ptr<SlabMemory> no_memory();

}  // namespace kvd::client
