#pragma once

#include <cstddef>
#include <cstdint>

namespace kvd::tests {

constexpr std::size_t kSlabBytes = std::size_t{8} << 20;

/// Eight bytes that depend on their place and on `salt`.
inline std::uint64_t pattern_at(std::size_t i, std::uint64_t salt) {
  return (i + 1) * 0x9E3779B97F4A7C15u ^ salt * 0xBF58476D1CE4E5B9u;
}

inline void fill_pattern(void* at, std::size_t bytes, std::uint64_t salt) {
  auto* words = static_cast<std::uint64_t*>(at);
  for (std::size_t i = 0; i < bytes / 8; ++i) words[i] = pattern_at(i, salt);
}

inline bool has_pattern(const void* at, std::size_t bytes, std::uint64_t salt) {
  const auto* words = static_cast<const std::uint64_t*>(at);
  for (std::size_t i = 0; i < bytes / 8; ++i) {
    if (words[i] != pattern_at(i, salt)) return false;
  }
  return true;
}

/// A page that a daemon and an engine map: fence words, and the poison word beside them.
struct FencePage {
  std::uint64_t fence;
  std::uint64_t poison;
};
constexpr std::size_t kPageBytes = 4096;

}  // namespace kvd::tests
