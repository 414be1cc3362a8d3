#pragma once

// Every entry point: base name, the CUDA version that brought this ABI (cudaTypedefs.h), symbol.
// clang-format off
#define FAKECUDA_ENTRIES(X) \
  X("cuInit", 2000, cuInit), \
  X("cuDriverGetVersion", 2020, cuDriverGetVersion), \
  X("cuGetProcAddress", 11030, cuGetProcAddress), \
  X("cuGetProcAddress", 12000, cuGetProcAddress_v2), \
  X("cuGetErrorName", 6000, cuGetErrorName), \
  X("cuGetErrorString", 6000, cuGetErrorString), \
  X("cuDeviceGetCount", 2000, cuDeviceGetCount), \
  X("cuDeviceGet", 2000, cuDeviceGet), \
  X("cuDeviceGetName", 2000, cuDeviceGetName), \
  X("cuDeviceGetUuid", 9020, cuDeviceGetUuid), \
  X("cuDeviceGetUuid", 11040, cuDeviceGetUuid_v2), \
  X("cuDeviceGetPCIBusId", 4010, cuDeviceGetPCIBusId), \
  X("cuDeviceGetAttribute", 2000, cuDeviceGetAttribute), \
  X("cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2), \
  X("cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain), \
  X("cuDevicePrimaryCtxRelease", 11000, cuDevicePrimaryCtxRelease_v2), \
  X("cuCtxSetCurrent", 4000, cuCtxSetCurrent), \
  X("cuCtxGetCurrent", 4000, cuCtxGetCurrent), \
  X("cuCtxPushCurrent", 4000, cuCtxPushCurrent_v2), \
  X("cuCtxPopCurrent", 4000, cuCtxPopCurrent_v2), \
  X("cuCtxSynchronize", 2000, cuCtxSynchronize), \
  X("cuCtxSynchronize", 13000, cuCtxSynchronize_v2), \
  X("cuMemGetAllocationGranularity", 10020, cuMemGetAllocationGranularity), \
  X("cuMemCreate", 10020, cuMemCreate), \
  X("cuMemRelease", 10020, cuMemRelease), \
  X("cuMemExportToShareableHandle", 10020, cuMemExportToShareableHandle), \
  X("cuMemImportFromShareableHandle", 10020, cuMemImportFromShareableHandle), \
  X("cuMemGetAllocationPropertiesFromHandle", 10020, cuMemGetAllocationPropertiesFromHandle), \
  X("cuMemRetainAllocationHandle", 11000, cuMemRetainAllocationHandle), \
  X("cuMemAddressReserve", 10020, cuMemAddressReserve), \
  X("cuMemAddressFree", 10020, cuMemAddressFree), \
  X("cuMemMap", 10020, cuMemMap), \
  X("cuMemUnmap", 10020, cuMemUnmap), \
  X("cuMemSetAccess", 10020, cuMemSetAccess), \
  X("cuMemGetAccess", 10020, cuMemGetAccess), \
  X("cuMemGetInfo", 3020, cuMemGetInfo_v2), \
  X("cuMemHostRegister", 6050, cuMemHostRegister_v2), \
  X("cuMemHostUnregister", 4000, cuMemHostUnregister), \
  X("cuMemHostGetDevicePointer", 3020, cuMemHostGetDevicePointer_v2), \
  X("cuPointerGetAttribute", 4000, cuPointerGetAttribute), \
  X("cuMemsetD8Async", 3020, cuMemsetD8Async), \
  X("cuMemsetD32Async", 3020, cuMemsetD32Async), \
  X("cuMemcpyAsync", 4000, cuMemcpyAsync), \
  X("cuMemcpyHtoDAsync", 3020, cuMemcpyHtoDAsync_v2), \
  X("cuMemcpyDtoHAsync", 3020, cuMemcpyDtoHAsync_v2), \
  X("cuMemcpy2DAsync", 3020, cuMemcpy2DAsync_v2), \
  X("cuMemcpyBatchAsync", 12080, cuMemcpyBatchAsync), \
  X("cuMemcpyBatchAsync", 13000, cuMemcpyBatchAsync_v2), \
  X("cuStreamCreateWithPriority", 5050, cuStreamCreateWithPriority), \
  X("cuStreamDestroy", 4000, cuStreamDestroy_v2), \
  X("cuStreamQuery", 2000, cuStreamQuery), \
  X("cuStreamSynchronize", 2000, cuStreamSynchronize), \
  X("cuStreamWaitEvent", 3020, cuStreamWaitEvent), \
  X("cuEventCreate", 2000, cuEventCreate), \
  X("cuEventRecord", 2000, cuEventRecord), \
  X("cuEventQuery", 2000, cuEventQuery), \
  X("cuEventSynchronize", 2000, cuEventSynchronize), \
  X("cuEventDestroy", 4000, cuEventDestroy_v2), \
  X("cuEventElapsedTime", 2000, cuEventElapsedTime), \
  X("cuEventElapsedTime", 12080, cuEventElapsedTime_v2), \
  X("cuLaunchHostFunc", 10000, cuLaunchHostFunc), \
  X("cuStreamWaitValue64", 11070, cuStreamWaitValue64_v2), \
  X("cuStreamWriteValue64", 11070, cuStreamWriteValue64_v2), \
  X("cuStreamBatchMemOp", 11070, cuStreamBatchMemOp_v2), \
  X("cuModuleLoadData", 2000, cuModuleLoadData), \
  X("cuModuleUnload", 2000, cuModuleUnload), \
  X("cuModuleGetFunction", 2000, cuModuleGetFunction), \
  X("cuLaunchKernel", 4000, cuLaunchKernel),
// clang-format on
