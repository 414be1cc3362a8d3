#pragma once

#include <cstdint>
#include <string_view>

namespace kvd {

/// A hash of what is added, in order: the same in every process, and easy to steer for whoever
/// chooses the words, so no table that strangers fill may rely on it.
/// Source: FNV-1a, 64 bits; a word may be wider than a byte.
class Fnv1a {
 public:
  constexpr void add(std::uint64_t word) { hash_ = (hash_ ^ word) * 0x100000001b3ULL; }
  constexpr void add_bytes(std::string_view text) {
    for (const char c : text) add(static_cast<unsigned char>(c));
  }
  [[nodiscard]] constexpr std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
};

}  // namespace kvd
