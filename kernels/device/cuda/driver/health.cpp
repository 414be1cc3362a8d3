#include "kernels/device/cuda/driver/health.hpp"

#include "kernels/device/cuda/driver/error.hpp"

namespace kvd::kernels::cuda {

void Health::lose(const Error& cause) {
  const std::lock_guard lock(mutex_);
  if (!cause_.ok()) return;
  cause_ = make_error(ErrorCode::kDeviceError, "device lost, restart kvd: " + cause.message);
  lost_.store(true, std::memory_order_release);
}

Status Health::status() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

Status Health::check(CUresult result, std::string_view what) {
  if (result == CUDA_SUCCESS) return {};
  Error error = error_of(driver_, result, what);
  if (severity(result) != Severity::kFatal) return error;
  lose(error);
  return status();
}

}  // namespace kvd::kernels::cuda
