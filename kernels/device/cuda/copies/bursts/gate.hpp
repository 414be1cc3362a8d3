#pragma once

#include <cuda.h>

#include "ipc/vocabulary/result.hpp"
#include "kernels/device/cuda/memory/host_registration.hpp"
#include "kernels/device/host/host_memory.hpp"

namespace kvd::kernels::cuda {

/// A word of host memory on which some streams wait and which others write. It is zero at first.
/// Owner:  move-only; a context is current at both ends. Precondition of destruction: no stream
/// waits on it or writes it any more.
/// Errors: those of HostMemory and of the driver.
class Gate {
 public:
  [[nodiscard]] static Result<Gate> make(const Driver& driver) {
    HostMemoryRequest request{"kvd-gate", kPage, PagePreference::kSmall, {}, 1};
    KVD_ASSIGN_OR_RETURN(HostMemory memory, HostMemory::create(request));
    KVD_ASSIGN_OR_RETURN(HostRegistration registration,
                         HostRegistration::make(driver, memory.address(), memory.size()));
    return Gate(std::move(memory), std::move(registration));
  }

  /// The address that stream memory operations use.
  [[nodiscard]] CUdeviceptr word() const { return registration_.device_address(); }

 private:
  static constexpr Bytes kPage = kKiB * 64;  // a whole page on every kernel

  Gate(HostMemory memory, HostRegistration registration)
      : memory_(std::move(memory)), registration_(std::move(registration)) {}

  HostMemory memory_;
  HostRegistration registration_;  // last: undone before the memory goes
};

}  // namespace kvd::kernels::cuda
