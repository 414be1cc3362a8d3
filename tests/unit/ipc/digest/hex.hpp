#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/hex.hpp"

namespace kvd::digest {

using kvd::hex;
inline std::string hex(const Digest& digest) { return hex(digest.bytes); }

inline std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace kvd::digest
