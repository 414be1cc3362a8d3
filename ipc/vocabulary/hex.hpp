#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvd {

/// Two digits a byte, in lower case.
[[nodiscard]] inline std::string hex(std::span<const std::uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

/// A UUID as tools show it: groups of 8-4-4-4-12 digits. nvidia-smi puts "GPU-" before it.
[[nodiscard]] inline std::string uuid_text(const std::array<std::uint8_t, 16>& uuid) {
  std::string text = hex(uuid);
  for (const std::size_t dash : {8u, 13u, 18u, 23u}) text.insert(dash, 1, '-');
  return text;
}

}  // namespace kvd
