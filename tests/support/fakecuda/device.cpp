// Initialisation, devices and their facts.
#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/support/fakecuda/driver.hpp"

using fakecuda::driver;
using fakecuda::enter;
using fakecuda::Needs;

namespace {

bool known(CUdevice device) { return device >= 0 && device < driver().config.devices; }

int attribute_value(CUdevice_attribute attribute, CUdevice device) {
  switch (static_cast<int>(attribute)) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
      return driver().config.stream_memory_operations ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
      return driver().config.host_addresses ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      return driver().config.host_numa ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return driver().config.compute_capability / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return driver().config.compute_capability % 10;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
      return INT_MAX;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
      return device + 1;
    default:
      return 0;
  }
}

}  // namespace

CUresult CUDAAPI cuInit(unsigned int flags) {
  if (const CUresult r = enter("cuInit", Needs::kNothing)) return r;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  fakecuda::Driver& d = driver();
  if (d.config.init != CUDA_SUCCESS) return d.config.init;
  if (d.config.devices == 0) return CUDA_ERROR_NO_DEVICE;
  const std::lock_guard lock(d.mutex);
  d.initialized = true;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  if (const CUresult r = enter("cuDriverGetVersion", Needs::kNothing)) return r;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = driver().config.driver_version;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  if (const CUresult r = enter("cuDeviceGetCount", Needs::kInit)) return r;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = driver().config.devices;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  if (const CUresult r = enter("cuDeviceGet", Needs::kInit)) return r;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!known(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice device) {
  if (const CUresult r = enter("cuDeviceGetName", Needs::kInit)) return r;
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<std::size_t>(length), "fakecuda %d", device);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  if (const CUresult r = enter("cuDeviceGetUuid", Needs::kInit)) return r;
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid->bytes, "fakecuda device", 16);
  uuid->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  if (const CUresult r = enter("cuDeviceGetPCIBusId", Needs::kInit)) return r;
  if (id == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  const int needed =
      std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", device + 1);
  return needed < length ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (const CUresult r = enter("cuDeviceGetAttribute", Needs::kInit)) return r;
  if (value == nullptr || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute_value(attribute, device);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceTotalMem(std::size_t* bytes, CUdevice device) {
  if (const CUresult r = enter("cuDeviceTotalMem", Needs::kInit)) return r;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = driver().config.hbm_bytes;
  return CUDA_SUCCESS;
}
