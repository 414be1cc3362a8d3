#pragma once

#include <cuda.h>

#include <atomic>
#include <mutex>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "kernels/device/cuda/driver.hpp"

namespace kvd::kernels::cuda {

/// Whether the device still does what it is told. Sticky CUDA errors and copies that do not move
/// end it for good: nothing that follows can be trusted, and nothing but a restart helps.
/// Owner: thread-safe.
class Health {
 public:
  explicit Health(const Driver& driver) : driver_(driver) {}

  /// The first cause is kept.
  void lose(const Error& cause);
  [[nodiscard]] bool lost() const { return lost_.load(std::memory_order_acquire); }
  /// Ok, or DeviceError "device lost, restart kvd: cause".
  [[nodiscard]] Status status() const;
  /// The result as a Status; a fatal one loses the device.
  [[nodiscard]] Status check(CUresult result, std::string_view what);

 private:
  const Driver& driver_;
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;  // guards cause_
  Status cause_;
};

}  // namespace kvd::kernels::cuda
