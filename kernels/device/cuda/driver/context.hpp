#pragma once

#include <cuda.h>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/driver/device.hpp"
#include "kernels/device/cuda/driver/driver.hpp"

namespace kvd::kernels::cuda {

/// The device's primary context, retained. It is shared with everything else in this process that
/// uses the runtime API on the device, and costs its HBM once a process.
/// Owner:  move-only; gives it back on destruction. The driver outlives it.
/// Errors: those of the driver.
class PrimaryContext {
 public:
  [[nodiscard]] static Result<PrimaryContext> retain(const Driver& driver, const Device& device);
  PrimaryContext(PrimaryContext&& other) noexcept;
  PrimaryContext& operator=(PrimaryContext&&) = delete;
  ~PrimaryContext();

  [[nodiscard]] const Driver& driver() const { return *driver_; }
  [[nodiscard]] CUdevice device() const { return device_; }
  [[nodiscard]] CUcontext get() const { return context_; }
  /// How much of the device's memory was in use right after this context was made. That is its
  /// cost, or an upper bound of it where other processes use the device: nothing can be asked
  /// before there is a context.
  [[nodiscard]] Bytes used_at_start() const { return used_at_start_; }
  /// Free and total memory of the device now.
  struct Memory {
    Bytes free, total;
  };
  [[nodiscard]] Result<Memory> memory() const;

 private:
  PrimaryContext(const Driver& driver, CUdevice device, CUcontext context)
      : driver_(&driver), device_(device), context_(context) {}

  const Driver* driver_;
  CUdevice device_;
  CUcontext context_;
  Bytes used_at_start_;
};

/// Makes a context current on the calling thread for a scope. Nothing in the scope belongs to a
/// graph that a stream of this process is being captured into, so calls that the driver forbids
/// during a capture in case they do are allowed (cuda.h, cuThreadExchangeStreamCaptureMode).
/// Waiting for the whole context still ends captures.
class ScopedCurrent {
 public:
  explicit ScopedCurrent(const PrimaryContext& context);
  ~ScopedCurrent();
  ScopedCurrent(const ScopedCurrent&) = delete;
  ScopedCurrent& operator=(const ScopedCurrent&) = delete;
  /// Not ok: the context is dead, and calls in this scope fail with the same error.
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const Driver& driver_;
  Status status_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // later the thread's own mode
};

}  // namespace kvd::kernels::cuda
