#pragma once

#include <cuda.h>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/driver/driver.hpp"

/// CUDA's virtual memory management, with owners for what the calls hand out. The daemon creates
/// and exports, a client imports; both reserve, map and grant. Both go through the same sequence:
/// PhysicalMemory -> AddressRange::reserve -> Mapping::map -> grant_access over the whole range
/// Source: cuda.h 13.0, "Virtual Memory Management".
/// Owner:  move-only types; the Driver outlives them. Not to be used in a forked child.
namespace kvd::kernels::cuda {

/// Where an allocation's pages are, or who may reach them: a device, or a NUMA node of the host.
struct Place {
  CUmemLocation location;
  bool gpu_direct_rdma = false;  ///< made so that storage and network cards can reach it, too

  Place(CUdevice device, bool rdma = false)  // NOLINT(google-explicit-constructor): mostly one is
      : location{CU_MEM_LOCATION_TYPE_DEVICE, device}, gpu_direct_rdma(rdma) {}
  static Place on_node(unsigned node) {
    Place place(static_cast<CUdevice>(node));
    place.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    return place;
  }
};

/// The smallest unit of size, address and placement of exportable memory at the place.
[[nodiscard]] Result<Bytes> granularity(const Driver& driver, const Place& place);

/// One physical allocation, owned by its handle. It can only be mapped as a whole. Its bytes live
/// as long as any handle, mapping or exported descriptor of it in any process.
class PhysicalMemory {
 public:
  /// Makes memory that can be exported as a file descriptor. Its bytes are whatever was there
  /// before: zero it. Errors: OutOfMemory, transient while dying processes still hold memory.
  [[nodiscard]] static Result<PhysicalMemory> create(const Driver& driver, const Place& place,
                                                     Bytes size);
  /// Takes memory from a descriptor that export_fd() made, in this process or another; `fd` still
  /// belongs to the caller and may be closed at once. `size` must be the allocation's: the driver
  /// reports a wrong size only in map(). Errors: InvalidArgument for a descriptor that is no such
  /// memory.
  [[nodiscard]] static Result<PhysicalMemory> import_fd(const Driver& driver, int fd, Bytes size);
  PhysicalMemory(PhysicalMemory&& other) noexcept;
  PhysicalMemory& operator=(PhysicalMemory&&) = delete;
  ~PhysicalMemory();

  /// A new close-on-exec descriptor. Its holder can map, read and write the bytes for ever.
  [[nodiscard]] Result<UniqueFd> export_fd() const;
  [[nodiscard]] const Driver& driver() const { return *driver_; }
  [[nodiscard]] CUmemGenericAllocationHandle handle() const { return handle_; }
  [[nodiscard]] Bytes size() const { return size_; }

 private:
  PhysicalMemory(const Driver& driver, CUmemGenericAllocationHandle handle, Bytes size)
      : driver_(&driver), handle_(handle), size_(size) {}

  const Driver* driver_;  // null: moved from
  CUmemGenericAllocationHandle handle_;
  Bytes size_;
};

/// Reserved addresses with nothing behind them.
class AddressRange {
 public:
  /// Precondition: size and alignment are multiples of the granularity; alignment 0: any.
  [[nodiscard]] static Result<AddressRange> reserve(const Driver& driver, Bytes size,
                                                    Bytes alignment = Bytes(0));
  AddressRange(AddressRange&& other) noexcept;
  AddressRange& operator=(AddressRange&&) = delete;
  /// Precondition: nothing is mapped in it any more.
  ~AddressRange();

  [[nodiscard]] CUdeviceptr address() const { return address_; }
  [[nodiscard]] Bytes size() const { return size_; }

 private:
  AddressRange(const Driver& driver, CUdeviceptr address, Bytes size)
      : driver_(&driver), address_(address), size_(size) {}

  const Driver* driver_;
  CUdeviceptr address_;
  Bytes size_;
};

/// A whole allocation mapped somewhere in an AddressRange. It is out of reach until access is
/// granted. Precondition of destruction: no copy and no kernel uses it any more; if one does, its
/// whole context dies.
class Mapping {
 public:
  /// The mapping keeps the bytes alive: an importer may drop `memory` at once.
  [[nodiscard]] static Result<Mapping> map(CUdeviceptr address, const PhysicalMemory& memory);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping();

  [[nodiscard]] CUdeviceptr address() const { return address_; }
  [[nodiscard]] Bytes size() const { return size_; }

 private:
  Mapping(const Driver& driver, CUdeviceptr address, Bytes size)
      : driver_(&driver), address_(address), size_(size) {}

  const Driver* driver_;
  CUdeviceptr address_;
  Bytes size_;
};

/// kRead guards an importer against its own bugs, not others against the importer: it may grant
/// itself more. A write through such a mapping kills the writer's context.
enum class Access : std::uint8_t { kRead, kReadWrite };

/// Lets a device, or the CPUs for memory of their node, reach [address, address + size), which
/// whole mappings must fill without a gap.
[[nodiscard]] Status grant_access(const Driver& driver, CUdeviceptr address, Bytes size,
                                  const Place& who, Access access);

}  // namespace kvd::kernels::cuda
