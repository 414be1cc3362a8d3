#pragma once

#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvd::bench {

/// Floor of bulk moves: non-temporal stores in a loop. Precondition: 64-byte aligned, n % 64 == 0.
#if defined(__x86_64__)
__attribute__((target("avx2"))) inline void nt_copy(void* to, const void* from, std::size_t n) {
  auto* d = static_cast<__m256i*>(to);
  const auto* s = static_cast<const __m256i*>(from);
  for (std::size_t i = 0; i < n / 32; ++i) _mm256_stream_si256(d + i, _mm256_load_si256(s + i));
  _mm_sfence();
}
#else
inline void nt_copy(void* to, const void* from, std::size_t n) { std::memcpy(to, from, n); }
#endif

}  // namespace kvd::bench
