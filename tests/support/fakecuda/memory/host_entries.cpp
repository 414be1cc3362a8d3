// Registered host memory, and what a pointer is.
#include "tests/support/fakecuda/driver.hpp"

using fakecuda::current_context;
using fakecuda::driver;
using fakecuda::enter;
using fakecuda::Needs;

CUresult CUDAAPI cuMemHostRegister(void* memory, std::size_t size, unsigned int flags) {
  if (const CUresult r = enter("cuMemHostRegister", Needs::kContext)) return r;
  fakecuda::synchronize_if_told();
  const std::lock_guard lock(driver().mutex);
  return driver().host.add(reinterpret_cast<CUdeviceptr>(memory), size, flags, current_context());
}

CUresult CUDAAPI cuMemHostUnregister(void* memory) {
  if (const CUresult r = enter("cuMemHostUnregister", Needs::kContext)) return r;
  {
    const std::lock_guard lock(driver().mutex);
    driver().host.expect_unused(reinterpret_cast<CUdeviceptr>(memory));
  }
  fakecuda::synchronize();
  const std::lock_guard lock(driver().mutex);
  return driver().host.remove(reinterpret_cast<CUdeviceptr>(memory));
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* device, void* memory, unsigned int flags) {
  if (const CUresult r = enter("cuMemHostGetDevicePointer", Needs::kContext)) return r;
  if (device == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto pointer = reinterpret_cast<CUdeviceptr>(memory);
  const std::lock_guard lock(driver().mutex);
  const auto found = driver().host.find(pointer);
  const bool known = found != driver().host.none() && pointer - found->first < found->second.size;
  if (!known || (found->second.flags & CU_MEMHOSTREGISTER_DEVICEMAP) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *device = found->second.device + (pointer - found->first);
  return CUDA_SUCCESS;
}

namespace {

/// What cuPointerGetAttribute tells about a pointer.
struct Facts {
  unsigned type = 0;
  CUcontext context = nullptr;
  CUdeviceptr device = 0, host = 0, start = 0;
  std::size_t size = 0;
  int ordinal = 0;
  unsigned handle_types = 0;
};

// With driver().mutex.
bool facts_of(CUdeviceptr pointer, Facts& facts) {
  const fakecuda::Driver& d = driver();
  if (const auto* mapping = d.vmm.at(pointer, &facts.start)) {
    const auto& prop = mapping->memory->prop();
    const bool on_device = mapping->memory->on_device();
    facts.type = on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    facts.device = pointer;
    facts.host = on_device ? 0 : pointer;
    facts.size = mapping->size;
    facts.ordinal = on_device ? prop.location.id : -1;
    facts.handle_types = prop.requestedHandleTypes;
    return true;
  }
  const auto found = d.host.find(pointer);
  if (found == d.host.none()) return false;
  const bool by_host = pointer - found->first < found->second.size;
  const CUdeviceptr offset = pointer - (by_host ? found->first : found->second.device);
  facts = Facts{CU_MEMORYTYPE_HOST,
                found->second.context,
                found->second.device + offset,
                found->first + offset,
                found->first,
                found->second.size,
                found->second.context->device,
                0};
  return true;
}

}  // namespace

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                       CUdeviceptr pointer) {
  if (const CUresult r = enter("cuPointerGetAttribute", Needs::kContext)) return r;
  const std::lock_guard lock(driver().mutex);
  Facts facts;
  if (data == nullptr || !facts_of(pointer, facts)) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = facts.context;
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = facts.type;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = facts.device;
      break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (facts.host == 0) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<CUdeviceptr*>(data) = facts.host;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = facts.ordinal;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = facts.start;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(data) = facts.size;
      break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(data) = 0;
      break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<unsigned*>(data) = 1;
      break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned long long*>(data) = facts.handle_types;
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}
