#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

#include "tests/gpu/lab.hpp"

namespace kvd::gpu {

/// Words of a page of host memory that processes and streams wait on and write; 64 bytes apart.
enum class Slot : std::uint8_t { kGate = 0, kSignal = 1, kAnswer = 2 };

[[nodiscard]] inline std::uint64_t* slot_word(const PinnedMemory& page, Slot slot) {
  return page.words() + 8 * static_cast<std::size_t>(slot);
}
[[nodiscard]] inline CUdeviceptr slot_address(const PinnedMemory& page, Slot slot) {
  return page.device_address() + 64 * static_cast<std::size_t>(slot);
}

/// Errors: Unsupported where the driver has no stream memory operations.
Status queue_wait(const Gpu& gpu, CUstream stream, CUdeviceptr slot, std::uint64_t value);
Status queue_write(const Gpu& gpu, CUstream stream, CUdeviceptr slot, std::uint64_t value);

/// An event that other processes may wait for, by the older interprocess calls.
/// Errors: Unsupported where the driver lacks them.
struct SharedEvent {
  CUevent event = nullptr;
  std::string handle;  ///< hexadecimal
};
[[nodiscard]] Result<SharedEvent> share_event(const Gpu& gpu);
[[nodiscard]] Result<CUevent> open_event(const Gpu& gpu, const std::string& handle);

}  // namespace kvd::gpu
