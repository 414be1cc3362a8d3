#include "tests/support/fakecuda/streams/dma.hpp"

namespace fakecuda {

#if defined(__x86_64__)

void dma_copy(std::byte* to, const std::byte* from, std::size_t size) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
}

void dma_fill(std::byte* to, unsigned value, std::size_t value_size, std::size_t size) {
  if (value_size == 1) {
    asm volatile("rep stosb" : "+D"(to), "+c"(size) : "a"(value) : "memory");
  } else {
    std::size_t words = size / value_size;
    asm volatile("rep stosl" : "+D"(to), "+c"(words) : "a"(value) : "memory");
  }
}

#else

// Plain loops. Sanitizers do not instrument them, and the compiler may not turn them into calls of
// memcpy and memset, which sanitizers intercept.
#define FAKECUDA_UNSEEN                                         \
  __attribute__((no_sanitize("address", "thread", "undefined"), \
                 optimize("no-tree-loop-distribute-patterns")))

FAKECUDA_UNSEEN void dma_copy(std::byte* to, const std::byte* from, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) to[i] = from[i];
}

FAKECUDA_UNSEEN void dma_fill(std::byte* to, unsigned value, std::size_t value_size,
                              std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    to[i] = static_cast<std::byte>(value >> (8 * (i % value_size)));
  }
}

#endif

}  // namespace fakecuda
