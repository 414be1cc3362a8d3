#include "kernels/copy/host_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvd::kernels {
namespace {

constexpr std::size_t kLine = 64;

#if defined(__x86_64__)

// Each copies `n` bytes, a multiple of kLine, to a line-aligned destination.

__attribute__((target("avx512f"))) void copy_lines_avx512(std::byte* destination,
                                                          const std::byte* source, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLine) {
    const __m512i line = _mm512_loadu_si512(source + i);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(destination + i), line);
  }
}

__attribute__((target("avx2"))) void copy_lines_avx2(std::byte* destination,
                                                     const std::byte* source, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLine) {
    const auto* from = reinterpret_cast<const __m256i*>(source + i);
    auto* to = reinterpret_cast<__m256i*>(destination + i);
    const __m256i low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
    _mm256_stream_si256(to, low);
    _mm256_stream_si256(to + 1, high);
  }
}

void copy_lines_sse2(std::byte* destination, const std::byte* source, std::size_t n) {
  for (std::size_t i = 0; i < n; i += sizeof(__m128i)) {
    const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(destination + i), part);
  }
}

void copy_lines(std::byte* destination, const std::byte* source, std::size_t n, StreamingIsa isa) {
  switch (isa) {
    case StreamingIsa::kAvx512:
      copy_lines_avx512(destination, source, n);
      break;
    case StreamingIsa::kAvx2:
      copy_lines_avx2(destination, source, n);
      break;
    case StreamingIsa::kSse2:
      copy_lines_sse2(destination, source, n);
      break;
    case StreamingIsa::kPlain:
      std::memcpy(destination, source, n);
      break;
  }
  _mm_sfence();
}

#else

void copy_lines(std::byte* destination, const std::byte* source, std::size_t n, StreamingIsa) {
  std::memcpy(destination, source, n);
}

#endif

}  // namespace

bool supported(StreamingIsa isa) {
  if (isa == StreamingIsa::kPlain) return true;
#if defined(__x86_64__)
  switch (isa) {
    case StreamingIsa::kPlain:
    case StreamingIsa::kSse2:
      return true;
    case StreamingIsa::kAvx2:
      return __builtin_cpu_supports("avx2") != 0;
    case StreamingIsa::kAvx512:
      return __builtin_cpu_supports("avx512f") != 0;
  }
#endif
  return false;
}

StreamingIsa best_streaming_isa() {
  static const StreamingIsa best = [] {
    for (const auto isa : {StreamingIsa::kAvx512, StreamingIsa::kAvx2, StreamingIsa::kSse2}) {
      if (supported(isa)) return isa;
    }
    return StreamingIsa::kPlain;
  }();
  return best;
}

void copy_streaming(void* destination, const void* source, std::size_t n, StreamingIsa isa) {
  if (n == 0) return;
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kLine;
  const std::size_t head = std::min(n, (kLine - misaligned) % kLine);
  const std::size_t body = (n - head) / kLine * kLine;
  std::memcpy(to, from, head);
  std::memcpy(to + head + body, from + head + body, n - head - body);
  copy_lines(to + head, from + head, body, isa);
}

void copy_run(void* destination, const void* source, std::size_t n) {
  if (n >= kStreamingThreshold) {
    copy_streaming(destination, source, n);
  } else if (n > 0) {
    std::memcpy(destination, source, n);
  }
}

void fill_zero(void* destination, std::size_t n) {
  if (n > 0) std::memset(destination, 0, n);
}

}  // namespace kvd::kernels
