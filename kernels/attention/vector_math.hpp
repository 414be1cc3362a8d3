#pragma once

#include <cstddef>
#include <cstdint>

namespace kvd::kernels {

enum class VectorIsa : std::uint8_t { kBaseline, kAvx2, kAvx512 };

/// The sums that attention and matrix products are made of. Every sum runs in the same order on
/// every instruction set: lane i of 16 takes elements i, i + 16, …, then the lanes are added as a
/// tree. No fused multiply-add. So the bits depend on the numbers alone, and several products that
/// share an operand may be computed side by side.
struct VectorMath {
  static constexpr std::size_t kSide = 4;

  float (*dot)(const float* a, const float* b, std::size_t n);
  /// out[i] = dot(a, b[i]) for kSide vectors b.
  void (*dots)(const float* a, const float* const* b, std::size_t n, float* out);
  /// sum += x * factor.
  void (*add_scaled)(float* sum, const float* x, float factor, std::size_t n);
};

/// The fastest that this CPU runs.
[[nodiscard]] const VectorMath& vector_math();
/// One of them; nullptr where the CPU has no such instructions.
[[nodiscard]] const VectorMath* vector_math(VectorIsa isa);

}  // namespace kvd::kernels
