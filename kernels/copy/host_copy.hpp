#pragma once

#include <cstddef>
#include <cstdint>

namespace kvd::kernels {

/// From this length on copy_run() goes past the caches. Measured on cold pools: non-temporal stores
/// are 1.4-2.0 times memcpy from 64 KiB up, and slower than it where the destination stays hot.
constexpr std::size_t kStreamingThreshold = std::size_t{64} * 1024;

/// How copy_streaming() writes. kPlain is memcpy, for CPUs without such stores.
enum class StreamingIsa : std::uint8_t { kPlain, kSse2, kAvx2, kAvx512 };
constexpr const char* name(StreamingIsa isa) {
  constexpr const char* kNames[] = {"memcpy", "sse2", "avx2", "avx512"};
  return kNames[static_cast<std::size_t>(isa)];
}
[[nodiscard]] bool supported(StreamingIsa isa);
/// The widest that this CPU supports.
[[nodiscard]] StreamingIsa best_streaming_isa();

/// Copies `n` bytes past the caches, with non-temporal stores. All bytes are ordered before any
/// store the calling thread does afterwards (the stores are fenced here).
/// Precondition: supported(isa); the ranges do not overlap. Any alignment; host memory only.
void copy_streaming(void* destination, const void* source, std::size_t n,
                    StreamingIsa isa = best_streaming_isa());

/// Copies `n` bytes the faster way for data that the CPU will not read soon.
void copy_run(void* destination, const void* source, std::size_t n);

/// Writes `n` zeros. Scrubbing writes in place: giving pages back and faulting them in again was
/// measured ten times slower than memset.
void fill_zero(void* destination, std::size_t n);

}  // namespace kvd::kernels
