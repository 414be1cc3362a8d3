#pragma once

#include <bit>
#include <cstdint>

namespace kvd::engine {

/// IEEE binary16 to float, exactly, subnormals, infinities and NaN included.
constexpr float from_half(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000U} << 16U;
  const std::uint32_t magnitude = bits & 0x7fffU;
  if (magnitude >= 0x7c00U) {
    return std::bit_cast<float>(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13U);
  }
  // The exponent field means 2^-112 times less here than in a float; one product puts that right,
  // subnormals too.
  const float scaled = std::bit_cast<float>(magnitude << 13U) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | sign);
}

/// bfloat16 is the upper half of a float.
constexpr float from_bfloat(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16U);
}

}  // namespace kvd::engine
