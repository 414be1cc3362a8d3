#include "kernels/copy/host_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvd::kernels {
namespace {

// Copies `n` bytes, a multiple of kLine, to a line-aligned destination.
using LineCopy = void (*)(std::byte* destination, const std::byte* source, std::size_t n);
struct Streaming {
  LineCopy copy;
  const char* isa;
};

#if defined(__x86_64__)

constexpr std::size_t kLine = 64;

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

Streaming choose() {
  if (__builtin_cpu_supports("avx512f")) return {copy_lines_avx512, "avx512"};
  if (__builtin_cpu_supports("avx2")) return {copy_lines_avx2, "avx2"};
  return {copy_lines_sse2, "sse2"};
}

void order_streamed_stores() { _mm_sfence(); }

#else

constexpr std::size_t kLine = 1;

void copy_lines_plain(std::byte* destination, const std::byte* source, std::size_t n) {
  std::memcpy(destination, source, n);
}

Streaming choose() { return {copy_lines_plain, "memcpy"}; }

void order_streamed_stores() {}

#endif

const Streaming& streaming() {
  static const Streaming chosen = choose();
  return chosen;
}

}  // namespace

void copy_streaming(void* destination, const void* source, std::size_t n) {
  if (n == 0) return;
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kLine;
  const std::size_t head = std::min(n, (kLine - misaligned) % kLine);
  const std::size_t body = (n - head) / kLine * kLine;
  std::memcpy(to, from, head);
  streaming().copy(to + head, from + head, body);
  std::memcpy(to + head + body, from + head + body, n - head - body);
  order_streamed_stores();
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

const char* streaming_isa() { return streaming().isa; }

}  // namespace kvd::kernels
