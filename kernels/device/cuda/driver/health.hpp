#pragma once

#include <cuda.h>

#include <atomic>
#include <mutex>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "kernels/device/cuda/driver/driver.hpp"

namespace kvd::kernels::cuda {

/// Whether the device still does what it is told. Sticky CUDA errors and copies that do not move
/// end that for good: nothing that follows can be trusted, and only a restart helps.
/// Owner: thread-safe.
class Health {
 public:
  explicit Health(const Driver& driver) : driver_(driver) {}

  /// Only the first cause is kept.
  void lose(const Error& cause);
  [[nodiscard]] bool lost() const { return lost_.load(std::memory_order_acquire); }
  /// Ok, or DeviceError "device lost, restart kvd: cause".
  [[nodiscard]] Status status() const;
  /// Turns the result into a Status; a fatal result means that the device is lost.
  [[nodiscard]] Status check(CUresult result, std::string_view what);

 private:
  const Driver& driver_;
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;  // guards cause_
  Status cause_;
};

}  // namespace kvd::kernels::cuda
