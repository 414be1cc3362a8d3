#pragma once

#include <cstddef>

namespace fakecuda {

/// The copy engine's hands. Like the hardware, they are invisible to sanitizers: a program that
/// reads too early is found by its wrong bytes.
void dma_copy(std::byte* to, const std::byte* from, std::size_t size);
void dma_fill(std::byte* to, unsigned value, std::size_t value_size, std::size_t size);

}  // namespace fakecuda
