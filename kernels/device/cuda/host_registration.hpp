#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

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

 private:
  HostRegistration(const Driver& driver, std::uintptr_t address, Bytes size)
      : driver_(&driver), address_(address), size_(size) {}

  const Driver* driver_;
  std::uintptr_t address_;
  CUdeviceptr device_address_ = 0;
  Bytes size_;
};

/// Registrations never reach across an address that is a multiple of this: one call for hundreds of
/// gigabytes blocks every CUDA process of the machine for minutes, and beyond 512 GiB it fails.
/// A copy that spans two registrations is refused by the driver, so copies are cut there too.
constexpr Bytes kRegistrationSpan = kGiB * 8;

/// A range of any size, in as many registrations as `span` asks for; undone in reverse.
class ChunkedRegistration {
 public:
  [[nodiscard]] static Result<ChunkedRegistration> make(const Driver& driver,
                                                        std::uintptr_t address, Bytes size,
                                                        Bytes span = kRegistrationSpan);
  ChunkedRegistration(ChunkedRegistration&&) noexcept = default;
  ChunkedRegistration& operator=(ChunkedRegistration&&) = delete;
  ~ChunkedRegistration();

  [[nodiscard]] const std::vector<HostRegistration>& chunks() const { return chunks_; }

 private:
  ChunkedRegistration() = default;

  std::vector<HostRegistration> chunks_;
};

}  // namespace kvd::kernels::cuda
