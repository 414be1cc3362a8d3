#include "kernels/device/cuda/memory/slabs.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace kvd::kernels::cuda {
namespace {

// Memory on the node nearest to the device, unless told otherwise. That node is only a preference,
// which a container without CAP_SYS_NICE may forbid. On Grace it is mandatory: there the memory of
// the device is a node, too, and a pool must not land on it.
Result<HostMemory> host_memory(HostMemoryRequest request, const Capabilities& capabilities) {
  const bool chosen = request.numa_node.has_value();
  if (!chosen) request.numa_node = capabilities.host_numa_node;
  Result<HostMemory> memory = HostMemory::create(request);
  const bool must = chosen || capabilities.host_pages_are_device_pages;
  if (memory.ok() || must || memory.error().code != ErrorCode::kPermissionDenied) return memory;
  request.numa_node.reset();
  return HostMemory::create(request);
}

// Where the device goes through the host's page tables, registration pins nothing (cuda.h).
Status keep_in_memory(const HostMemory& memory) {
  if (::mlock(reinterpret_cast<void*>(memory.address()), memory.size().size()) == 0) return {};
  return make_error(ErrorCode::kPermissionDenied,
                    std::string("cannot lock a slab in memory: ") + std::strerror(errno) +
                        "; set LimitMEMLOCK=infinity or give kvd CAP_IPC_LOCK");
}

}  // namespace

Result<HbmSlab> HbmSlab::create(const PrimaryContext& context, Bytes size, Bytes granularity,
                                bool gpu_direct_rdma) {
  const Place place(context.device(), gpu_direct_rdma);
  KVD_ASSIGN_OR_RETURN(PhysicalMemory memory,
                       PhysicalMemory::create(context.driver(), place, size));
  return map(context, std::move(memory), granularity, Access::kReadWrite);
}

Result<HbmSlab> HbmSlab::import(const PrimaryContext& context, int fd, Bytes size,
                                Bytes granularity) {
  KVD_ASSIGN_OR_RETURN(PhysicalMemory memory,
                       PhysicalMemory::import_fd(context.driver(), fd, size));
  Result<HbmSlab> slab = map(context, std::move(memory), granularity, Access::kRead);
  // Driver 580 returns Unsupported when more memory is asked for than the descriptor has.
  if (slab.ok() || slab.error().code != ErrorCode::kUnsupported) return slab;
  return make_error(ErrorCode::kInvalidArgument,
                    "the descriptor's memory is not as large (" + slab.error().message + ")");
}

Result<HbmSlab> HbmSlab::map(const PrimaryContext& context, PhysicalMemory memory,
                             Bytes granularity, Access access) {
  const Driver& driver = context.driver();
  const Bytes size = memory.size();
  KVD_ASSIGN_OR_RETURN(AddressRange range, AddressRange::reserve(driver, size + granularity));
  KVD_ASSIGN_OR_RETURN(Mapping mapping, Mapping::map(range.address(), memory));
  KVD_TRY(grant_access(driver, mapping.address(), size, context.device(), access));
  return HbmSlab(std::move(memory), std::move(range), std::move(mapping));
}

Status HbmSlab::export_once() {
  KVD_ASSIGN_OR_RETURN(exported_, memory_.export_fd());
  return {};
}

Result<UniqueFd> HbmSlab::share() const {
  UniqueFd copy(::fcntl(exported_.get(), F_DUPFD_CLOEXEC, 0));
  if (copy.get() >= 0) return copy;
  return make_error(ErrorCode::kUnavailable,
                    std::string("cannot duplicate a slab's descriptor: ") + std::strerror(errno));
}

Result<NumaSlab> NumaSlab::create(const PrimaryContext& context, Bytes size, Bytes granularity,
                                  unsigned node) {
  const Driver& driver = context.driver();
  const Place place = Place::on_node(node);
  KVD_ASSIGN_OR_RETURN(PhysicalMemory memory, PhysicalMemory::create(driver, place, size));
  KVD_ASSIGN_OR_RETURN(AddressRange range, AddressRange::reserve(driver, size + granularity));
  KVD_ASSIGN_OR_RETURN(Mapping mapping, Mapping::map(range.address(), memory));
  // Access is granted to the CPUs as well: without it their first touch is a fault.
  for (const Place& who : {Place(context.device()), place}) {
    KVD_TRY(grant_access(driver, mapping.address(), size, who, Access::kReadWrite));
  }
  auto* start = reinterpret_cast<void*>(mapping.address());
  if (::madvise(start, size.size(), MADV_DONTFORK) != 0 ||
      ::madvise(start, size.size(), MADV_DONTDUMP) != 0) {
    return make_error(ErrorCode::kUnsupported,
                      std::string("cannot keep a slab of the driver's host memory out of forks and "
                                  "core dumps: ") +
                          std::strerror(errno) + "; use memfds");
  }
  std::memset(start, 0, size.size());
  return NumaSlab(std::move(memory), std::move(range), std::move(mapping));
}

Result<unsigned> probe_host_numa(const Driver& driver, const Capabilities& capabilities,
                                 std::optional<unsigned> wanted) {
  const auto unsupported = [](const std::string& why) {
    return make_error(ErrorCode::kUnsupported, "no HOST_NUMA memory: " + why);
  };
  if (!capabilities.host_numa_memory) {
    return unsupported("it takes a driver of CUDA 12.6 or newer that supports it (attribute 141)");
  }
  if (!wanted) wanted = capabilities.host_numa_node;
  if (!wanted) return unsupported("the driver names no NUMA node next to the device");
  const Place place = Place::on_node(*wanted);
  const Result<Bytes> grain = granularity(driver, place);
  if (!grain.ok()) return unsupported(grain.error().message);
  const auto trial = PhysicalMemory::create(driver, place, *grain);
  if (!trial.ok()) {
    return unsupported(trial.error().message + " (in a container: add CAP_SYS_NICE)");
  }
  return *wanted;
}

Result<DramSlab> DramSlab::create(const Driver& driver, HostMemoryRequest request,
                                  const Capabilities& capabilities) {
  KVD_ASSIGN_OR_RETURN(HostMemory memory, host_memory(std::move(request), capabilities));
  return of(driver, std::move(memory), capabilities);
}

// Reopens the memory with its pages where they were.
Result<DramSlab> DramSlab::reopen(const Driver& driver, const HostMemoryRequest& request,
                                  UniqueFd file, bool zeroed, const Capabilities& capabilities) {
  KVD_ASSIGN_OR_RETURN(HostMemory memory, HostMemory::reopen(request, std::move(file), zeroed));
  return of(driver, std::move(memory), capabilities);
}

Result<DramSlab> DramSlab::of(const Driver& driver, HostMemory memory,
                              const Capabilities& capabilities) {
  if (capabilities.host_pages_are_device_pages) KVD_TRY(keep_in_memory(memory));
  KVD_ASSIGN_OR_RETURN(ChunkedRegistration registration,
                       ChunkedRegistration::make(driver, memory.address(), memory.size()));
  return DramSlab(std::move(memory), std::move(registration));
}

}  // namespace kvd::kernels::cuda
