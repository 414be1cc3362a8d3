#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/driver/driver.hpp"

namespace kvd::kernels::cuda {

/// Mapped host memory made known to the driver: pinned (except on Grace, see Capabilities) and
/// reachable from every context of the process, at device_address() for kernels and stream memory
/// operations. Copies take either address. The driver knows a page of this process only once.
/// Several devices share its registration, and the last of them ends it.
/// Owner:  move-only; unregisters on destruction, before the caller unmaps. A context is current at
/// both ends.
/// Errors: those of the driver; a failed registration leaves nothing behind.
class HostRegistration {
 public:
  [[nodiscard]] static Result<HostRegistration> make(const Driver& driver, std::uintptr_t address,
                                                     Bytes size);
  HostRegistration(HostRegistration&& other) noexcept = default;
  HostRegistration& operator=(HostRegistration&&) = delete;
  /// Precondition: no copy and no stream memory operation on these bytes is queued any more.
  ~HostRegistration() = default;

  [[nodiscard]] std::uintptr_t address() const { return pinned_->address; }
  [[nodiscard]] CUdeviceptr device_address() const { return device_address_; }
  [[nodiscard]] Bytes size() const { return pinned_->size; }

 private:
  /// Memory that the driver was told of once.
  struct Pinned {
    Pinned(const Driver& driver, std::uintptr_t address, Bytes size)
        : driver(driver), address(address), size(size) {}
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    ~Pinned();

    const Driver& driver;
    std::uintptr_t address;
    Bytes size;
  };

  HostRegistration() = default;
  static Result<std::shared_ptr<Pinned>> pin(const Driver& driver, std::uintptr_t address,
                                             Bytes size);

  std::shared_ptr<Pinned> pinned_;
  CUdeviceptr device_address_ = 0;
};

/// Registrations never reach across an address that is a multiple of this: one call for hundreds of
/// gigabytes blocks every CUDA process of the machine for minutes, and beyond 512 GiB it fails. The
/// driver refuses a copy that spans two registrations, so copies are cut there, too.
constexpr Bytes kRegistrationSpan = kGiB * 8;

/// A range of any size, in as many registrations as `span` requires; they are undone in reverse
/// order.
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
