// Physical memory, address ranges and access: checks of arguments in front of Vmm.
#include <chrono>
#include <cstdint>
#include <thread>

#include "tests/support/fakecuda/driver.hpp"

using fakecuda::driver;
using fakecuda::enter;
using fakecuda::Needs;
using fakecuda::Physical;

namespace {

// Call it with driver().mutex. It knows only the context of this process.
std::size_t used_bytes(int device) {
  fakecuda::Driver& d = driver();
  const bool has_context = d.contexts[static_cast<std::size_t>(device)]->retained > 0;
  return d.vmm.occupancy().used(device) + (has_context ? d.config.context_bytes : 0);
}

bool granular(std::size_t value) { return value % driver().config.granularity == 0; }

CUresult check_location(const CUmemAllocationProp& prop) {
  switch (prop.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return prop.location.id >= 0 && prop.location.id < driver().config.devices
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
      return prop.requestedHandleTypes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      if (!driver().config.host_numa) return CUDA_ERROR_NOT_SUPPORTED;
      return prop.location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult check_prop(const CUmemAllocationProp& prop) {
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED || prop.win32HandleMetaData != nullptr ||
      prop.allocFlags.usage != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const unsigned types = prop.requestedHandleTypes;
  if ((types & ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return check_location(prop);
}

}  // namespace

CUresult CUDAAPI cuMemGetAllocationGranularity(std::size_t* granularity,
                                               const CUmemAllocationProp* prop,
                                               CUmemAllocationGranularity_flags option) {
  if (const CUresult r = enter("cuMemGetAllocationGranularity", Needs::kInit)) return r;
  if (granularity == nullptr || prop == nullptr || option < CU_MEM_ALLOC_GRANULARITY_MINIMUM ||
      option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult r = check_prop(*prop)) return r;
  *granularity = driver().config.granularity;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size,
                             const CUmemAllocationProp* prop, unsigned long long flags) {
  if (const CUresult r = enter("cuMemCreate", Needs::kHealthy)) return r;
  if (handle == nullptr || prop == nullptr || flags != 0 || size == 0 || !granular(size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult r = check_prop(*prop)) return r;
  fakecuda::Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  const bool on_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (on_device) {
    const std::size_t used = used_bytes(prop->location.id);
    if (used > d.config.hbm_bytes || size > d.config.hbm_bytes - used) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  auto memory = Physical::create(size, *prop);
  if (!memory || !d.vmm.occupancy().add(*memory)) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = d.vmm.add(std::move(memory));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (const CUresult r = enter("cuMemRelease", Needs::kHealthy)) return r;
  const std::lock_guard lock(driver().mutex);
  return driver().vmm.release(handle);
}

CUresult CUDAAPI cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type,
                                              unsigned long long flags) {
  if (const CUresult r = enter("cuMemExportToShareableHandle", Needs::kHealthy)) return r;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(driver().mutex);  // other threads' calls wait for it, too
  std::this_thread::sleep_for(std::chrono::microseconds(driver().config.export_us));
  const auto memory = driver().vmm.find(handle);
  if (!memory || memory->prop().requestedHandleTypes != type) return CUDA_ERROR_INVALID_VALUE;
  const int fd = memory->export_fd();
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *static_cast<int*>(out) = fd;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os,
                                                CUmemAllocationHandleType type) {
  if (const CUresult r = enter("cuMemImportFromShareableHandle", Needs::kHealthy)) return r;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  auto memory = Physical::import(static_cast<int>(reinterpret_cast<std::intptr_t>(os)));
  if (!memory) return CUDA_ERROR_UNKNOWN;
  const std::lock_guard lock(driver().mutex);
  if (!driver().vmm.occupancy().add(*memory)) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = driver().vmm.add(std::move(memory));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                        CUmemGenericAllocationHandle handle) {
  if (const CUresult r = enter("cuMemGetAllocationPropertiesFromHandle", Needs::kHealthy)) return r;
  const std::lock_guard lock(driver().mutex);
  const auto memory = driver().vmm.find(handle);
  if (prop == nullptr || !memory) return CUDA_ERROR_INVALID_VALUE;
  *prop = memory->prop();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  if (const CUresult r = enter("cuMemRetainAllocationHandle", Needs::kHealthy)) return r;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(driver().mutex);
  return driver().vmm.retain(reinterpret_cast<CUdeviceptr>(address), *handle);
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* pointer, std::size_t size, std::size_t alignment,
                                     CUdeviceptr, unsigned long long flags) {
  if (const CUresult r = enter("cuMemAddressReserve", Needs::kHealthy)) return r;
  const bool power_of_two = (alignment & (alignment - 1)) == 0;
  if (pointer == nullptr || size == 0 || !granular(size) || !power_of_two || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(driver().mutex);
  return driver().vmm.reserve(size, alignment, *pointer);
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr pointer, std::size_t size) {
  if (const CUresult r = enter("cuMemAddressFree", Needs::kHealthy)) return r;
  const std::lock_guard lock(driver().mutex);
  return driver().vmm.unreserve(pointer, size);
}

CUresult CUDAAPI cuMemMap(CUdeviceptr pointer, std::size_t size, std::size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (const CUresult r = enter("cuMemMap", Needs::kHealthy)) return r;
  if (offset != 0 || flags != 0 || size == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(driver().mutex);
  return driver().vmm.map(pointer, size, handle);
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr pointer, std::size_t size) {
  if (const CUresult r = enter("cuMemUnmap", Needs::kHealthy)) return r;
  fakecuda::synchronize_if_told();
  const std::lock_guard lock(driver().mutex);
  return driver().vmm.unmap(pointer, size);
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr pointer, std::size_t size, const CUmemAccessDesc* desc,
                                std::size_t count) {
  if (const CUresult r = enter("cuMemSetAccess", Needs::kHealthy)) return r;
  fakecuda::synchronize_if_told();
  if (desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(driver().mutex);
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned flags = desc[i].flags;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult r = driver().vmm.set_access(pointer, size, desc[i])) return r;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                CUdeviceptr pointer) {
  if (const CUresult r = enter("cuMemGetAccess", Needs::kHealthy)) return r;
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(driver().mutex);
  const auto* mapping = driver().vmm.at(pointer);
  if (mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    *flags = mapping->host_access;
  } else {
    const auto found = mapping->device_access.find(location->id);
    *flags = found == mapping->device_access.end() ? 0 : found->second;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetInfo(std::size_t* free, std::size_t* total) {
  if (const CUresult r = enter("cuMemGetInfo", Needs::kContext)) return r;
  if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  fakecuda::Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  const std::size_t used = used_bytes(fakecuda::current_context()->device);
  *total = d.config.hbm_bytes;
  *free = used < *total ? *total - used : 0;
  return CUDA_SUCCESS;
}
