#include "tests/support/fakecuda/dma.hpp"

#if !defined(__x86_64__)
#error "dma.cpp copies with x86-64 string instructions; add this machine's"
#endif

namespace fakecuda {

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

}  // namespace fakecuda
