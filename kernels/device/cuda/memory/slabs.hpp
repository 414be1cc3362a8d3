#pragma once

#include <cstdint>
#include <optional>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/driver/context.hpp"
#include "kernels/device/cuda/driver/device.hpp"
#include "kernels/device/cuda/memory/host_registration.hpp"
#include "kernels/device/cuda/memory/vmm.hpp"
#include "kernels/device/host/host_memory.hpp"

namespace kvd::kernels::cuda {

/// One VMM handle, mapped whole for its device, with a gap of addresses behind it so that no two
/// slabs are adjacent. It holds whatever was there before.
/// Owner:  move-only. Precondition of destruction: no copy touches it any more.
/// Errors: OutOfMemory, which may pass.
class HbmSlab {
 public:
  [[nodiscard]] static Result<HbmSlab> create(const PrimaryContext& context, Bytes size,
                                              Bytes granularity, bool gpu_direct_rdma);
  /// Maps memory of an earlier process by its descriptor, only to be read. Others that have it may
  /// go on writing there. Errors: InvalidArgument for a descriptor that is no such memory of this
  /// size.
  [[nodiscard]] static Result<HbmSlab> import(const PrimaryContext& context, int fd, Bytes size,
                                              Bytes granularity);

  [[nodiscard]] CUdeviceptr address() const { return mapping_.address(); }
  [[nodiscard]] Bytes size() const { return memory_.size(); }
  /// Makes share() possible. The driver takes 0.6 to 0.8 ms for it (H200: deploy/gpu-reports, E2):
  /// there is time for that where slabs are made, but not where they are handed out.
  [[nodiscard]] Status export_once();
  /// A new close-on-exec descriptor. Precondition: export_once() succeeded. Errors: Unavailable
  /// when there is no descriptor left.
  [[nodiscard]] Result<UniqueFd> share() const;

 private:
  static Result<HbmSlab> map(const PrimaryContext& context, PhysicalMemory memory,
                             Bytes granularity, Access access);
  HbmSlab(PhysicalMemory memory, AddressRange range, Mapping mapping)
      : memory_(std::move(memory)), range_(std::move(range)), mapping_(std::move(mapping)) {}

  PhysicalMemory memory_;  // kept, since only a handle can be exported
  AddressRange range_;
  Mapping mapping_;  // after them: unmapped before its addresses are given back
  UniqueFd exported_;
};

/// One allocation by the driver on a NUMA node of the host, mapped whole for the device and the
/// CPUs. It is pinned by its nature, so there is nothing to register; where it is used its copies
/// need no more. It holds zeros.
/// Owner:  as HbmSlab.
/// Errors: OutOfMemory; PermissionDenied where a container forbids memory policies.
class NumaSlab {
 public:
  [[nodiscard]] static Result<NumaSlab> create(const PrimaryContext& context, Bytes size,
                                               Bytes granularity, unsigned node);

  [[nodiscard]] std::uintptr_t address() const { return mapping_.address(); }
  [[nodiscard]] Result<UniqueFd> share() const { return memory_.export_fd(); }

 private:
  NumaSlab(PhysicalMemory memory, AddressRange range, Mapping mapping)
      : memory_(std::move(memory)), range_(std::move(range)), mapping_(std::move(mapping)) {}

  PhysicalMemory memory_;
  AddressRange range_;
  Mapping mapping_;  // last, as above
};

/// The node on which NumaSlabs can be made here: `wanted`, or else the one nearest to the device.
/// It makes one granule there as a trial, since a container's rules show only in that. Errors:
/// Unsupported with the reason and the remedy.
[[nodiscard]] Result<unsigned> probe_host_numa(const Driver& driver,
                                               const Capabilities& capabilities,
                                               std::optional<unsigned> wanted);

/// One memfd, registered with the driver.
/// Owner:  move-only; a context is current at both ends. Precondition of destruction as above.
/// Errors: those of HostMemory and of the driver; PermissionDenied where it cannot be kept in
/// memory.
class DramSlab {
 public:
  [[nodiscard]] static Result<DramSlab> create(const Driver& driver, HostMemoryRequest request,
                                               const Capabilities& capabilities);
  /// Opens the memory of an earlier process again, as HostMemory::reopen does.
  [[nodiscard]] static Result<DramSlab> reopen(const Driver& driver,
                                               const HostMemoryRequest& request, UniqueFd memory,
                                               bool zeroed, const Capabilities& capabilities);

  [[nodiscard]] std::uintptr_t address() const { return memory_.address(); }
  [[nodiscard]] PageKind pages() const { return memory_.pages(); }
  [[nodiscard]] Result<UniqueFd> share() const { return memory_.share(); }

 private:
  static Result<DramSlab> of(const Driver& driver, HostMemory memory,
                             const Capabilities& capabilities);
  DramSlab(HostMemory memory, ChunkedRegistration registration)
      : memory_(std::move(memory)), registration_(std::move(registration)) {}

  HostMemory memory_;
  ChunkedRegistration registration_;  // last: undone before the memory goes
};

}  // namespace kvd::kernels::cuda
