#include "kernels/device/cuda/slabs.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace kvd::kernels::cuda {
namespace {

// On the node nearest to the device unless told otherwise. That node is a preference only, which a
// container without CAP_SYS_NICE may forbid; on Grace it is a must, since there the memory of the
// device is a node, too, on which a pool must not land.
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
  const Driver& driver = context.driver();
  KVD_ASSIGN_OR_RETURN(PhysicalMemory memory,
                       PhysicalMemory::create(driver, context.device(), size, gpu_direct_rdma));
  KVD_ASSIGN_OR_RETURN(AddressRange range, AddressRange::reserve(driver, size + granularity));
  KVD_ASSIGN_OR_RETURN(Mapping mapping, Mapping::map(range.address(), memory));
  KVD_TRY(grant_access(driver, mapping.address(), size, context.device(), Access::kReadWrite));
  return HbmSlab(std::move(memory), std::move(range), std::move(mapping));
}

Result<DramSlab> DramSlab::create(const Driver& driver, HostMemoryRequest request,
                                  const Capabilities& capabilities) {
  KVD_ASSIGN_OR_RETURN(HostMemory memory, host_memory(std::move(request), capabilities));
  if (capabilities.host_pages_are_device_pages) KVD_TRY(keep_in_memory(memory));
  KVD_ASSIGN_OR_RETURN(ChunkedRegistration registration,
                       ChunkedRegistration::make(driver, memory.address(), memory.size()));
  return DramSlab(std::move(memory), std::move(registration));
}

}  // namespace kvd::kernels::cuda
