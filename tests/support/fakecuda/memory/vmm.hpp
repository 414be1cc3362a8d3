#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tests/support/fakecuda/memory/physical.hpp"

namespace fakecuda {

/// A piece of memory as the copy engines reach it; `keep` holds it while they work on it.
struct Segment {
  std::byte* data = nullptr;
  std::size_t size = 0;
  std::shared_ptr<const void> keep;
};

/// Handles, reservations, mappings and access rights: the VMM half of the driver, this process's
/// part. Not thread-safe: driver().mutex.
/// Device memory is never mapped for the CPU at the address programs see, so a CPU access through
/// a device pointer faults as it does on a machine with a GPU.
class Vmm {
 public:
  using Handle = CUmemGenericAllocationHandle;

  struct Mapping {
    std::size_t size = 0;
    Handle handle = 0;
    std::shared_ptr<Physical> memory;
    std::map<int, unsigned> device_access;  // by ordinal
    unsigned host_access = 0;
  };

  ~Vmm();

  Handle add(std::shared_ptr<Physical> memory);
  /// Null for an unknown or wholly released handle.
  std::shared_ptr<Physical> find(Handle handle) const;
  CUresult release(Handle handle);
  CUresult retain(CUdeviceptr pointer, Handle& handle);

  CUresult reserve(std::size_t size, std::size_t alignment, CUdeviceptr& pointer);
  CUresult unreserve(CUdeviceptr pointer, std::size_t size);
  CUresult map(CUdeviceptr pointer, std::size_t size, Handle handle);
  /// Whole mappings back to back, or InvalidValue.
  CUresult unmap(CUdeviceptr pointer, std::size_t size);
  CUresult set_access(CUdeviceptr pointer, std::size_t size, const CUmemAccessDesc& desc);

  /// The mapping around `pointer`, with its start; null where there is none.
  const Mapping* at(CUdeviceptr pointer, CUdeviceptr* start = nullptr) const;
  /// Whether the range lies within one reservation, mapped or not.
  bool reserved(CUdeviceptr pointer, std::size_t size) const;
  bool touches_reservation(CUdeviceptr pointer, std::size_t size) const;
  /// The bytes, if all of them are mapped and `device` may read (or write) them; else empty.
  std::vector<Segment> access(int device, CUdeviceptr pointer, std::size_t size, bool write) const;

  Occupancy& occupancy() { return occupancy_; }
  std::size_t live_handles() const;
  std::size_t live_mappings() const { return mappings_.size(); }
  std::size_t live_reservations() const { return reservations_.size(); }

 private:
  struct Entry {
    std::shared_ptr<Physical> memory;
    unsigned references = 0;
    unsigned mappings = 0;
  };
  struct Reservation {
    std::size_t size = 0;
    std::byte* raw = nullptr;  // with the room taken for alignment
    std::size_t raw_size = 0;
  };
  using Run = std::vector<std::map<CUdeviceptr, Mapping>::iterator>;

  /// The mappings that make up the range exactly; empty if they do not.
  Run whole_run(CUdeviceptr pointer, std::size_t size);
  void forget_if_unused(Handle handle);

  Handle last_ = 0x1000;
  std::map<Handle, Entry> handles_;
  std::map<CUdeviceptr, Reservation> reservations_;
  std::map<CUdeviceptr, Mapping> mappings_;
  Occupancy occupancy_;
};

}  // namespace fakecuda
