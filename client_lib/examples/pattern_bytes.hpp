#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvd_pattern {

/// Whose bytes these are; every part changes all of them.
struct Origin {
  std::uint64_t seed = 0;
  std::uint64_t request = 0;
  std::uint64_t token = 0;
  std::uint32_t layer = 0;
};

/// Fills the KV of one token in one layer. Precondition: whole 8-byte words.
void fill(std::span<std::byte> kv, const Origin& origin);

/// Whether it holds exactly what fill() writes.
[[nodiscard]] bool matches(std::span<const std::byte> kv, const Origin& origin);

}  // namespace kvd_pattern
