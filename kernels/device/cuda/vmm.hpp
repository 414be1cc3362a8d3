#pragma once

#include <cuda.h>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/driver.hpp"

/// CUDA's virtual memory management, as owners of what the calls hand out. The daemon creates and
/// exports, a client imports; both reserve, map and grant. Sequence of either:
///   PhysicalMemory -> AddressRange::reserve -> Mapping::map -> grant_access over the whole range
/// Source: cuda.h 13.0, "Virtual Memory Management".
/// Owner:  move-only types; the Driver outlives them. Not to be used in a forked child.
namespace kvd::kernels::cuda {

/// Where an allocation's pages are, or who may reach them: a device, or a NUMA node of the host.
struct Place {
  CUmemLocation location;
  bool gpu_direct_rdma = false;  ///< made so that storage and network cards reach it, too

  Place(CUdevice device, bool rdma = false)  // NOLINT(google-explicit-constructor): mostly one is
      : location{CU_MEM_LOCATION_TYPE_DEVICE, device}, gpu_direct_rdma(rdma) {}
  static Place on_node(unsigned node) {
    Place place(static_cast<CUdevice>(node));
    place.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    return place;
  }
};

/// The smallest unit of size, address and placement of exportable memory there.
[[nodiscard]] Result<Bytes> granularity(const Driver& driver, const Place& place);

/// One physical allocation, by handle. Mapped only as a whole. Its bytes live as
/// long as any handle, mapping or exported descriptor of it in any process.
class PhysicalMemory {
 public:
  /// Exportable as a file descriptor. Its bytes are whatever was there before: zero it.
  /// Errors: OutOfMemory, transient while dying processes still hold memory.
  [[nodiscard]] static Result<PhysicalMemory> create(const Driver& driver, const Place& place,
                                                     Bytes size);
  /// From a descriptor that export_fd() made, in this process or another; `fd` stays the caller's
  /// and may be closed at once. `size` must be the allocation's: the driver says so only in map().
  /// Errors: InvalidArgument for a descriptor that is no such memory.
  [[nodiscard]] static Result<PhysicalMemory> import_fd(const Driver& driver, int fd, Bytes size);
  PhysicalMemory(PhysicalMemory&& other) noexcept;
  PhysicalMemory& operator=(PhysicalMemory&&) = delete;
  ~PhysicalMemory();

  /// A new close-on-exec descriptor. Who holds it can map the bytes, read and write, for ever.
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

/// A whole allocation mapped somewhere in an AddressRange; out of reach until access is granted.
/// Precondition of destruction: no copy and no kernel uses it any more; one that does dies with its
/// whole context.
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
/// itself more. A write through it kills the writer's context.
enum class Access : std::uint8_t { kRead, kReadWrite };

/// Lets a device, or the CPUs for memory of their node, reach [address, address + size), which
/// whole mappings fill without a gap.
[[nodiscard]] Status grant_access(const Driver& driver, CUdeviceptr address, Bytes size,
                                  const Place& who, Access access);

}  // namespace kvd::kernels::cuda
