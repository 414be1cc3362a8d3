#pragma once

#include <cstddef>

namespace kvd::kernels {

/// From this length on copy_run() goes past the caches. Measured on cold pools: non-temporal stores
/// are 1.4-2.0 times memcpy from 64 KiB up, and slower than it where the destination stays hot.
constexpr std::size_t kStreamingThreshold = 64 * 1024;

/// Copies `n` bytes with non-temporal stores, by the widest registers this CPU has. All bytes are
/// ordered before any store the calling thread does afterwards (the stores are fenced here).
/// Precondition: the ranges do not overlap. Any alignment; source and destination are host memory.
void copy_streaming(void* destination, const void* source, std::size_t n);

/// Copies `n` bytes the faster way for data that the CPU will not read soon.
void copy_run(void* destination, const void* source, std::size_t n);

/// Writes `n` zeros. Scrubbing writes in place: giving pages back and faulting them in again was
/// measured ten times slower than memset.
void fill_zero(void* destination, std::size_t n);

/// What copy_streaming() uses on this CPU: "avx512", "avx2", "sse2" or "memcpy".
[[nodiscard]] const char* streaming_isa();

}  // namespace kvd::kernels
