#include "tests/gpu/slots.hpp"

#include <cudaTypedefs.h>

#include <charconv>
#include <cstring>

namespace kvd::gpu {
namespace {

template <class Function>
Status find(const Gpu& gpu, Function& function, const char* name, int version) {
  void* address = nullptr;
  const CUresult result = gpu.driver().get_proc_address(name, &address, version,
                                                        CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr);
  function = reinterpret_cast<Function>(address);
  if (result == CUDA_SUCCESS && address != nullptr) return {};
  return make_error(ErrorCode::kUnsupported, std::string("this driver has no ") + name);
}

}  // namespace

Status queue_wait(const Gpu& gpu, CUstream stream, CUdeviceptr slot, std::uint64_t value) {
  if (gpu.driver().stream_wait_value64 == nullptr) {
    return make_error(ErrorCode::kUnsupported, "this driver has no cuStreamWaitValue64");
  }
  return gpu.check(gpu.driver().stream_wait_value64(stream, slot, value, CU_STREAM_WAIT_VALUE_GEQ),
                   "a stream's wait for a value");
}

Status queue_write(const Gpu& gpu, CUstream stream, CUdeviceptr slot, std::uint64_t value) {
  if (gpu.driver().stream_write_value64 == nullptr) {
    return make_error(ErrorCode::kUnsupported, "this driver has no cuStreamWriteValue64");
  }
  return gpu.check(
      gpu.driver().stream_write_value64(stream, slot, value, CU_STREAM_WRITE_VALUE_DEFAULT),
      "a stream's write of a value");
}

Result<SharedEvent> share_event(const Gpu& gpu) {
  PFN_cuIpcGetEventHandle_v4010 get_handle = nullptr;
  KVD_TRY(find(gpu, get_handle, "cuIpcGetEventHandle", 4010));
  SharedEvent shared;
  KVD_TRY(gpu.check(
      gpu.driver().event_create(&shared.event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
      "making an event for other processes"));
  CUipcEventHandle raw{};
  KVD_TRY(gpu.check(get_handle(&raw, shared.event), "exporting an event"));
  constexpr char kDigits[] = "0123456789abcdef";
  for (const char c : raw.reserved) {
    shared.handle += kDigits[static_cast<unsigned char>(c) >> 4];
    shared.handle += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return shared;
}

Result<CUevent> open_event(const Gpu& gpu, const std::string& handle) {
  PFN_cuIpcOpenEventHandle_v4010 open = nullptr;
  KVD_TRY(find(gpu, open, "cuIpcOpenEventHandle", 4010));
  CUipcEventHandle raw{};
  if (handle.size() != 2 * sizeof raw.reserved) {
    return make_error(ErrorCode::kInvalidArgument, "no event handle");
  }
  for (std::size_t i = 0; i < sizeof raw.reserved; ++i) {
    unsigned byte = 0;
    std::from_chars(handle.data() + 2 * i, handle.data() + 2 * i + 2, byte, 16);
    raw.reserved[i] = static_cast<char>(byte);
  }
  CUevent event = nullptr;
  KVD_TRY(gpu.check(open(&event, raw), "opening another process's event"));
  return event;
}

}  // namespace kvd::gpu
