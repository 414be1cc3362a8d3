#pragma once

#include <cuda.h>

#include <cstdint>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/driver.hpp"

namespace kvd::kernels::cuda {

/// Mapped host memory made known to the driver: pinned (not on Grace, see Capabilities), reachable
/// from every context of the process, at device_address() for kernels and stream memory operations.
/// Copies take either address.
/// Owner:  move-only; unregisters on destruction, before the caller unmaps. A context is current at
///         both ends.
/// Errors: those of the driver; a failed registration leaves nothing behind.
class HostRegistration {
 public:
  [[nodiscard]] static Result<HostRegistration> make(const Driver& driver, std::uintptr_t address,
                                                     Bytes size);
  HostRegistration(HostRegistration&& other) noexcept;
  HostRegistration& operator=(HostRegistration&&) = delete;
  /// Precondition: no copy and no stream memory operation on these bytes is queued any more.
  ~HostRegistration();

  [[nodiscard]] std::uintptr_t address() const { return address_; }
  [[nodiscard]] CUdeviceptr device_address() const { return device_address_; }
  [[nodiscard]] Bytes size() const { return size_; }
  void forget() { driver_ = nullptr; }

 private:
  HostRegistration(const Driver& driver, std::uintptr_t address, Bytes size)
      : driver_(&driver), address_(address), size_(size) {}

  const Driver* driver_;
  std::uintptr_t address_;
  CUdeviceptr device_address_ = 0;
  Bytes size_;
};

}  // namespace kvd::kernels::cuda
