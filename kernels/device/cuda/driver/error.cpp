#include "kernels/device/cuda/driver/error.hpp"

#include <algorithm>
#include <iterator>
#include <string>

namespace kvd::kernels::cuda {
namespace {

// Results that, according to cuda.h, leave the process in an inconsistent state, and those that
// mean that the device or the context is gone.
constexpr CUresult kFatal[] = {
    CUDA_ERROR_DEINITIALIZED,
    CUDA_ERROR_ECC_UNCORRECTABLE,
    CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUDA_ERROR_CONTAINED,
    CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_LAUNCH_TIMEOUT,
    CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUDA_ERROR_ASSERT,
    CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUDA_ERROR_MISALIGNED_ADDRESS,
    CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUDA_ERROR_INVALID_PC,
    CUDA_ERROR_LAUNCH_FAILED,
    CUDA_ERROR_TENSOR_MEMORY_LEAK,
    CUDA_ERROR_MPS_RPC_FAILURE,
    CUDA_ERROR_MPS_CLIENT_TERMINATED,
    CUDA_ERROR_EXTERNAL_DEVICE,
    CUDA_ERROR_UNKNOWN,
};

struct Meaning {
  CUresult result;
  ErrorCode code;
  const char* remedy;  // empty: there is nothing to add to the driver's own words
};

// A result that is in neither list failed alone and is a DeviceError.
constexpr Meaning kMeanings[] = {
    {CUDA_ERROR_INVALID_VALUE, ErrorCode::kInvalidArgument, ""},
    {CUDA_ERROR_OUT_OF_MEMORY, ErrorCode::kOutOfMemory,
     "lower the pool or free device memory; nvidia-smi shows who holds it"},
    {CUDA_ERROR_NOT_INITIALIZED, ErrorCode::kDeviceError,
     "CUDA does not work in a process forked from one that used it"},
    {CUDA_ERROR_STUB_LIBRARY, ErrorCode::kUnsupported,
     "the toolkit's stub libcuda was found instead of a driver: take its folder out of "
     "LD_LIBRARY_PATH and install the NVIDIA driver"},
    {CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, ErrorCode::kUnsupported, "update the NVIDIA driver"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, ErrorCode::kUnavailable,
     "another process has the device for itself: nvidia-smi -c DEFAULT"},
    {CUDA_ERROR_NO_DEVICE, ErrorCode::kUnsupported,
     "no device is visible: see nvidia-smi -L, CUDA_VISIBLE_DEVICES and the container's GPUs"},
    {CUDA_ERROR_INVALID_DEVICE, ErrorCode::kInvalidArgument, "nvidia-smi -L lists the devices"},
    {CUDA_ERROR_ECC_UNCORRECTABLE, ErrorCode::kDeviceError,
     "the device's memory is faulty: reset it (nvidia-smi -r) and restart kvd"},
    {CUDA_ERROR_OPERATING_SYSTEM, ErrorCode::kUnavailable,
     "the operating system refused: raise LimitNOFILE and LimitMEMLOCK"},
    {CUDA_ERROR_INVALID_HANDLE, ErrorCode::kInvalidArgument, ""},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, ErrorCode::kInvalidArgument, ""},
    {CUDA_ERROR_NOT_PERMITTED, ErrorCode::kPermissionDenied,
     "kvd needs CAP_IPC_LOCK, and its container the device's files"},
    {CUDA_ERROR_NOT_SUPPORTED, ErrorCode::kUnsupported, "this device or driver cannot do it"},
    {CUDA_ERROR_SYSTEM_NOT_READY, ErrorCode::kUnavailable,
     "start the NVIDIA services of this machine (nvidia-fabricmanager)"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, ErrorCode::kDeviceError,
     "libcuda and the kernel module differ in version: reboot, or reinstall the driver"},
    {CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, ErrorCode::kUnsupported,
     "this device takes no compatibility libcuda: use the driver's own"},
    {CUDA_ERROR_MPS_CONNECTION_FAILED, ErrorCode::kUnavailable,
     "kvd needs no MPS: unset CUDA_MPS_PIPE_DIRECTORY, or start the MPS control daemon"},
    {CUDA_ERROR_MPS_SERVER_NOT_READY, ErrorCode::kUnavailable,
     "the MPS server still recovers: try again when its clients have ended"},
};

Meaning meaning(CUresult result) {
  const auto* found = std::find_if(std::begin(kMeanings), std::end(kMeanings),
                                   [&](const Meaning& m) { return m.result == result; });
  if (found != std::end(kMeanings)) return *found;
  const bool fatal = severity(result) == Severity::kFatal;
  return {result, ErrorCode::kDeviceError,
          fatal ? "the device's context is gone: restart kvd; the kernel log may tell an Xid" : ""};
}

// The driver's words for the result; empty where it does not know it.
std::string ask(PFN_cuGetErrorString_v6000 question, CUresult result) {
  const char* answer = nullptr;
  const bool known = question != nullptr && question(result, &answer) == CUDA_SUCCESS;
  return known && answer != nullptr ? answer : "";
}

}  // namespace

Severity severity(CUresult result) {
  if (result == CUDA_SUCCESS) return Severity::kNone;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return Severity::kTransient;
  const bool fatal = std::find(std::begin(kFatal), std::end(kFatal), result) != std::end(kFatal);
  return fatal ? Severity::kFatal : Severity::kCall;
}

bool is_about_capture(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
         result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

Error error_of(const Driver& driver, CUresult result, std::string_view what) {
  const Meaning known = meaning(result);
  std::string name = ask(driver.get_error_name, result);
  // The stub cannot even name its own result.
  if (name.empty()) name = result == CUDA_ERROR_STUB_LIBRARY ? "STUB_LIBRARY" : "CUDA error";
  std::string message =
      std::string(what) + ": " + name + " (" + std::to_string(static_cast<int>(result)) + ")";
  const std::string sentence = ask(driver.get_error_string, result);
  if (!sentence.empty()) message += ", " + sentence;
  if (*known.remedy != '\0') message += std::string(": ") + known.remedy;
  return make_error(known.code, std::move(message));
}

Status check(const Driver& driver, CUresult result, std::string_view what) {
  if (result == CUDA_SUCCESS) return {};
  return error_of(driver, result, what);
}

}  // namespace kvd::kernels::cuda
