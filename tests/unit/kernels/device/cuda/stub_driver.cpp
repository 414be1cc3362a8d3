// What a toolkit's lib/stubs/libcuda.so is, for toolkits that come without: there to link with, and
// every call fails.
#include <cuda.h>

extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI
cuGetProcAddress_v2(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*) {
  return CUDA_ERROR_STUB_LIBRARY;
}
