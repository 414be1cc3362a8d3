#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ipc/vocabulary/digest.hpp"

namespace kvd::digest {

inline std::string hex(std::span<const std::uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}
inline std::string hex(const Digest& digest) { return hex(digest.bytes); }

inline std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace kvd::digest
