#include "tests/gpu/image/image.hpp"

#include <string>

#include "kernels/device/cuda/driver/error.hpp"

namespace kvd::gpu {
namespace {

// The driver's results for an image that is not made for it, or for this GPU.
bool is_refusal(CUresult result) {
  switch (result) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<CUmodule> load_image(const kernels::cuda::Driver& driver, const DeviceImage& image,
                            const char* what) {
  CUmodule module = nullptr;
  const CUresult newest = driver.module_load_data(&module, image.fatbin);
  if (newest == CUDA_SUCCESS) return module;
  if (!is_refusal(newest)) return kernels::cuda::error_of(driver, newest, what);
  const CUresult oldest = driver.module_load_data(&module, image.ptx);
  if (oldest == CUDA_SUCCESS) return module;
  if (!is_refusal(oldest)) return kernels::cuda::error_of(driver, oldest, what);
  return make_error(ErrorCode::kUnsupported,
                    kernels::cuda::error_of(driver, newest, what).message + "; as PTX " +
                        kernels::cuda::error_of(driver, oldest, what).message +
                        ": it takes a GPU of sm_80 or newer; update the NVIDIA driver");
}

}  // namespace kvd::gpu
