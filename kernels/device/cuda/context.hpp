#pragma once

#include <cuda.h>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/device.hpp"
#include "kernels/device/cuda/driver.hpp"

namespace kvd::kernels::cuda {

/// The device's primary context, retained: shared with whatever else in this process uses the
/// runtime API on that device, and costing its HBM once a process.
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
  /// What of the device's memory was in use right after this context was made: its cost, and an
  /// upper bound of it where other processes use the device (no context, no way to ask before).
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

/// Makes a context the calling thread's current one for a scope, in which nothing belongs to a
/// graph that a stream of this process is being captured into: calls that the driver forbids beside
/// a capture, for fear that they might, are allowed (cuda.h, cuThreadExchangeStreamCaptureMode).
/// Waiting for the whole context ends captures all the same.
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
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // the thread's own, later
};

}  // namespace kvd::kernels::cuda
