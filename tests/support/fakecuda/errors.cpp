// The names of error codes.
#include <algorithm>
#include <cctype>
#include <map>
#include <string>

#include "tests/support/fakecuda/driver.hpp"

namespace {

struct Text {
  std::string name, sentence;
};

// "CUDA_ERROR_OUT_OF_MEMORY" reads "out of memory".
Text text_of(const char* name) {
  std::string sentence = name;
  sentence.erase(0, sentence.rfind("CUDA_ERROR_", 0) == 0 ? 11 : 5);
  for (char& c : sentence) c = c == '_' ? ' ' : static_cast<char>(std::tolower(c));
  return {name, sentence};
}

#define FAKECUDA_CODE(code) \
  { code, text_of(#code) }
const std::map<CUresult, Text>& texts() {
  static const std::map<CUresult, Text> kTexts = {
      FAKECUDA_CODE(CUDA_SUCCESS),
      FAKECUDA_CODE(CUDA_ERROR_INVALID_VALUE),
      FAKECUDA_CODE(CUDA_ERROR_OUT_OF_MEMORY),
      FAKECUDA_CODE(CUDA_ERROR_NOT_INITIALIZED),
      FAKECUDA_CODE(CUDA_ERROR_DEINITIALIZED),
      FAKECUDA_CODE(CUDA_ERROR_STUB_LIBRARY),
      FAKECUDA_CODE(CUDA_ERROR_DEVICE_UNAVAILABLE),
      FAKECUDA_CODE(CUDA_ERROR_NO_DEVICE),
      FAKECUDA_CODE(CUDA_ERROR_INVALID_DEVICE),
      FAKECUDA_CODE(CUDA_ERROR_INVALID_IMAGE),
      FAKECUDA_CODE(CUDA_ERROR_INVALID_CONTEXT),
      FAKECUDA_CODE(CUDA_ERROR_MAP_FAILED),
      FAKECUDA_CODE(CUDA_ERROR_ALREADY_MAPPED),
      FAKECUDA_CODE(CUDA_ERROR_NO_BINARY_FOR_GPU),
      FAKECUDA_CODE(CUDA_ERROR_NOT_MAPPED),
      FAKECUDA_CODE(CUDA_ERROR_ECC_UNCORRECTABLE),
      FAKECUDA_CODE(CUDA_ERROR_INVALID_HANDLE),
      FAKECUDA_CODE(CUDA_ERROR_ILLEGAL_STATE),
      FAKECUDA_CODE(CUDA_ERROR_NOT_FOUND),
      FAKECUDA_CODE(CUDA_ERROR_NOT_READY),
      FAKECUDA_CODE(CUDA_ERROR_ILLEGAL_ADDRESS),
      FAKECUDA_CODE(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
      FAKECUDA_CODE(CUDA_ERROR_LAUNCH_TIMEOUT),
      FAKECUDA_CODE(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE),
      FAKECUDA_CODE(CUDA_ERROR_CONTEXT_IS_DESTROYED),
      FAKECUDA_CODE(CUDA_ERROR_ASSERT),
      FAKECUDA_CODE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
      FAKECUDA_CODE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
      FAKECUDA_CODE(CUDA_ERROR_HARDWARE_STACK_ERROR),
      FAKECUDA_CODE(CUDA_ERROR_MISALIGNED_ADDRESS),
      FAKECUDA_CODE(CUDA_ERROR_INVALID_ADDRESS_SPACE),
      FAKECUDA_CODE(CUDA_ERROR_LAUNCH_FAILED),
      FAKECUDA_CODE(CUDA_ERROR_NOT_PERMITTED),
      FAKECUDA_CODE(CUDA_ERROR_NOT_SUPPORTED),
      FAKECUDA_CODE(CUDA_ERROR_SYSTEM_NOT_READY),
      FAKECUDA_CODE(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
      FAKECUDA_CODE(CUDA_ERROR_MPS_CONNECTION_FAILED),
      FAKECUDA_CODE(CUDA_ERROR_MPS_SERVER_NOT_READY),
      FAKECUDA_CODE(CUDA_ERROR_MPS_CLIENT_TERMINATED),
      FAKECUDA_CODE(CUDA_ERROR_TIMEOUT),
      FAKECUDA_CODE(CUDA_ERROR_UNKNOWN),
  };
  return kTexts;
}
#undef FAKECUDA_CODE

CUresult answer(CUresult error, const char** out, std::string Text::*which) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = texts().find(error);
  *out = found == texts().end() ? nullptr : (found->second.*which).c_str();
  return *out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** text) {
  return answer(error, text, &Text::name);
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
  return answer(error, text, &Text::sentence);
}
