#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <memory>
#include <string>

#include "ipc/vocabulary/result.hpp"

#if CUDA_VERSION < 13000
#error "kvd needs the headers of CUDA 13.0 or newer; the driver it runs on may be older"
#endif

/// ENTRY(member, entry point, version of its ABI, needed since the first supported driver).
/// The version picks one ABI where the driver exports several under one name; each type is asserted
/// equal to cuda.h's declaration in driver.cpp. Optional entries and what stands in for them:
///   cuMemcpyBatchAsync 13000 -> its 12080 form -> one cuMemcpyAsync a copy (BatchCopy)
///   cuStreamWriteValue64     -> the CPU writes fences once it has seen the copies end
///   cuStreamWaitValue64, cuStreamBatchMemOp -> the CPU waits
///   all others               -> the feature that needs them reports Unsupported
#define KVD_CUDA_ENTRIES(ENTRY)                                                     \
  ENTRY(init, cuInit, 2000, true)                                                   \
  ENTRY(driver_get_version, cuDriverGetVersion, 2020, true)                         \
  ENTRY(get_error_name, cuGetErrorName, 6000, true)                                 \
  ENTRY(get_error_string, cuGetErrorString, 6000, true)                             \
  ENTRY(device_get_count, cuDeviceGetCount, 2000, true)                             \
  ENTRY(device_get, cuDeviceGet, 2000, true)                                        \
  ENTRY(device_get_name, cuDeviceGetName, 2000, true)                               \
  ENTRY(device_get_uuid, cuDeviceGetUuid, 11040, true)                              \
  ENTRY(device_get_pci_bus_id, cuDeviceGetPCIBusId, 4010, true)                     \
  ENTRY(device_get_attribute, cuDeviceGetAttribute, 2000, true)                     \
  ENTRY(device_total_mem, cuDeviceTotalMem, 3020, true)                             \
  ENTRY(device_primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000, true)            \
  ENTRY(device_primary_ctx_release, cuDevicePrimaryCtxRelease, 11000, true)         \
  ENTRY(ctx_set_current, cuCtxSetCurrent, 4000, true)                               \
  ENTRY(ctx_get_current, cuCtxGetCurrent, 4000, true)                               \
  ENTRY(ctx_push_current, cuCtxPushCurrent, 4000, true)                             \
  ENTRY(ctx_pop_current, cuCtxPopCurrent, 4000, true)                               \
  ENTRY(ctx_synchronize, cuCtxSynchronize, 2000, true)                              \
  ENTRY(mem_get_allocation_granularity, cuMemGetAllocationGranularity, 10020, true) \
  ENTRY(mem_create, cuMemCreate, 10020, true)                                       \
  ENTRY(mem_release, cuMemRelease, 10020, true)                                     \
  ENTRY(mem_export, cuMemExportToShareableHandle, 10020, true)                      \
  ENTRY(mem_import, cuMemImportFromShareableHandle, 10020, true)                    \
  ENTRY(mem_get_properties, cuMemGetAllocationPropertiesFromHandle, 10020, true)    \
  ENTRY(mem_retain_handle, cuMemRetainAllocationHandle, 11000, true)                \
  ENTRY(mem_address_reserve, cuMemAddressReserve, 10020, true)                      \
  ENTRY(mem_address_free, cuMemAddressFree, 10020, true)                            \
  ENTRY(mem_map, cuMemMap, 10020, true)                                             \
  ENTRY(mem_unmap, cuMemUnmap, 10020, true)                                         \
  ENTRY(mem_set_access, cuMemSetAccess, 10020, true)                                \
  ENTRY(mem_get_access, cuMemGetAccess, 10020, true)                                \
  ENTRY(mem_get_info, cuMemGetInfo, 3020, true)                                     \
  ENTRY(mem_host_register, cuMemHostRegister, 6050, true)                           \
  ENTRY(mem_host_unregister, cuMemHostUnregister, 4000, true)                       \
  ENTRY(mem_host_get_device_pointer, cuMemHostGetDevicePointer, 3020, true)         \
  ENTRY(pointer_get_attribute, cuPointerGetAttribute, 4000, true)                   \
  ENTRY(memset_d8_async, cuMemsetD8Async, 3020, true)                               \
  ENTRY(memset_d32_async, cuMemsetD32Async, 3020, true)                             \
  ENTRY(memcpy_async, cuMemcpyAsync, 4000, true)                                    \
  ENTRY(memcpy_htod_async, cuMemcpyHtoDAsync, 3020, true)                           \
  ENTRY(memcpy_dtoh_async, cuMemcpyDtoHAsync, 3020, true)                           \
  ENTRY(memcpy_2d_async, cuMemcpy2DAsync, 3020, true)                               \
  ENTRY(memcpy_batch_async, cuMemcpyBatchAsync, 13000, false)                       \
  ENTRY(stream_create_with_priority, cuStreamCreateWithPriority, 5050, true)        \
  ENTRY(stream_destroy, cuStreamDestroy, 4000, true)                                \
  ENTRY(stream_query, cuStreamQuery, 2000, true)                                    \
  ENTRY(stream_synchronize, cuStreamSynchronize, 2000, true)                        \
  ENTRY(stream_wait_event, cuStreamWaitEvent, 3020, true)                           \
  ENTRY(event_create, cuEventCreate, 2000, true)                                    \
  ENTRY(event_record, cuEventRecord, 2000, true)                                    \
  ENTRY(event_query, cuEventQuery, 2000, true)                                      \
  ENTRY(event_synchronize, cuEventSynchronize, 2000, true)                          \
  ENTRY(event_destroy, cuEventDestroy, 4000, true)                                  \
  ENTRY(event_elapsed_time, cuEventElapsedTime, 12080, false)                       \
  ENTRY(launch_host_func, cuLaunchHostFunc, 10000, true)                            \
  ENTRY(stream_is_capturing, cuStreamIsCapturing, 10000, true)                      \
  ENTRY(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, 10010, true)      \
  ENTRY(stream_wait_value64, cuStreamWaitValue64, 11070, false)                     \
  ENTRY(stream_write_value64, cuStreamWriteValue64, 11070, false)                   \
  ENTRY(stream_batch_mem_op, cuStreamBatchMemOp, 11070, false)                      \
  ENTRY(module_load_data, cuModuleLoadData, 2000, true)                             \
  ENTRY(module_get_function, cuModuleGetFunction, 2000, true)                       \
  ENTRY(launch_kernel, cuLaunchKernel, 4000, true)

namespace kvd::kernels::cuda {

/// The CUDA driver of this machine: its entry points, found at run time, so that one binary starts
/// with and without a GPU. kvd uses the driver API only and links none of CUDA's libraries.
/// Source: cuda.h 13.0.
/// Owner:  immutable and thread-safe once made. Not to be used in a forked child.
/// Errors: Unsupported with one line that says why there is no CUDA here: no driver, the toolkit's
///         stub, no device, an entry point missing (named); DeviceError where a driver is there and
///         broken.
class Driver {
 public:
  /// The driver of the process, loaded and initialised at the first call. A failure is remembered.
  [[nodiscard]] static Result<const Driver*> load();
  /// Loads another library than the system's, for tests. It stays loaded.
  [[nodiscard]] static Result<std::unique_ptr<const Driver>> open(const std::string& library);

#define KVD_CUDA_MEMBER(member, entry, version, required) PFN_##entry##_v##version member = nullptr;
  KVD_CUDA_ENTRIES(KVD_CUDA_MEMBER)
#undef KVD_CUDA_MEMBER
  PFN_cuGetProcAddress_v12000 get_proc_address = nullptr;
  /// The form before 13.0, with one argument more: for drivers of CUDA 12.8 and 12.9.
  PFN_cuMemcpyBatchAsync_v12080 memcpy_batch_async_12080 = nullptr;

  /// As in cuDriverGetVersion: 1000 * major + 10 * minor.
  [[nodiscard]] int version() const { return version_; }

 private:
  Driver() = default;
  Status resolve(const std::string& library);
  Status start();

  int version_ = 0;
};

}  // namespace kvd::kernels::cuda
