// cuGetProcAddress, and the older versions of entry points whose base name is still exported.
#include "tests/support/fakecuda/memory/versions.hpp"

#include <string>

#include "tests/support/fakecuda/driver.hpp"

// cuda.h maps each base name to its newest version; what follows is about the names themselves.
#undef cuMemcpyBatchAsync
#undef cuEventElapsedTime
#undef cuDeviceGetUuid
#undef cuGetProcAddress

extern "C" {
#pragma GCC visibility push(default)

/// 12.8: with the index of the failed copy. Whatever fails, fails as a whole.
// NOLINTNEXTLINE(readability-function-size): the parameters are CUDA's
CUresult CUDAAPI cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes,
                                    std::size_t count, CUmemcpyAttributes* attributes,
                                    std::size_t* first, std::size_t attribute_count,
                                    std::size_t* failed, CUstream stream) {
  if (failed != nullptr) *failed = SIZE_MAX;
  return cuMemcpyBatchAsync_v2(to, from, sizes, count, attributes, first, attribute_count, stream);
}

CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) {
  return cuEventElapsedTime_v2(milliseconds, from, to);
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid_v2(uuid, device);
}

CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** function, int version,
                                  cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

#pragma GCC visibility pop
}

namespace {

struct Version {
  const char* name;
  int since;
  void* function;
};

#define FAKECUDA_ENTRY(name, since, symbol) \
  Version { name, since, reinterpret_cast<void*>(&symbol) }
const Version kVersions[] = {FAKECUDA_ENTRIES(FAKECUDA_ENTRY)};
#undef FAKECUDA_ENTRY

}  // namespace

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                     cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  if (const CUresult r = fakecuda::enter("cuGetProcAddress", fakecuda::Needs::kNothing)) return r;
  constexpr cuuint64_t kKnown =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  const int newest = fakecuda::driver().config.driver_version;
  if (symbol == nullptr || function == nullptr || version > newest || (flags & ~kKnown) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Version* best = nullptr;
  bool exists = false;
  for (const Version& entry : kVersions) {
    if (std::string(entry.name) != symbol || entry.since > newest) continue;
    exists = true;
    if (entry.since <= version && (best == nullptr || entry.since > best->since)) best = &entry;
  }
  *function = best == nullptr ? nullptr : best->function;
  if (status != nullptr) {
    *status = best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : exists        ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                              : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return CUDA_SUCCESS;
}
