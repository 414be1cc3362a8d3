#pragma once

#include <cuda.h>

#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "kernels/device/cuda/driver/driver.hpp"

/// The one place where a CUresult becomes an Error.
namespace kvd::kernels::cuda {

/// What a result means for the calls after it.
enum class Severity : std::uint8_t {
  kNone,       ///< CUDA_SUCCESS
  kTransient,  ///< out of memory: another process may be about to give some back
  kCall,       ///< only this call failed
  kFatal,      ///< the context or the device is gone: every later call fails too (sticky)
};
[[nodiscard]] Severity severity(CUresult result);

/// Whether the call was refused, or its answer withheld, because a stream is being captured. Such a
/// result says nothing about the work that was asked about.
[[nodiscard]] bool is_about_capture(CUresult result);

/// "what: CUDA_ERROR_… (number), the driver's sentence: remedy". The code is OutOfMemory,
/// Unsupported, PermissionDenied or DeviceError, depending on the result. Precondition: the result
/// is not CUDA_SUCCESS.
[[nodiscard]] Error error_of(const Driver& driver, CUresult result, std::string_view what);
/// Ok for CUDA_SUCCESS, otherwise error_of().
[[nodiscard]] Status check(const Driver& driver, CUresult result, std::string_view what);

}  // namespace kvd::kernels::cuda
