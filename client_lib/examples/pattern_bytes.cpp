#include "client_lib/examples/pattern_bytes.hpp"

#include <cstring>

namespace kvd_pattern {
namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): each input bit changes half the output.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

std::uint64_t key_of(const Origin& origin) {
  const std::uint64_t request = mix(mix(origin.seed) + origin.request);
  return mix(mix(request + origin.token) + origin.layer);
}

/// Word `index` of a pattern. One multiplication a word keeps checking near memory speed.
std::uint64_t word_of(std::uint64_t key, std::size_t index) {
  return (key + index) * 0x9e3779b97f4a7c15ull;
}

}  // namespace

void fill(std::span<std::byte> kv, const Origin& origin) {
  const std::uint64_t key = key_of(origin);
  for (std::size_t i = 0; i < kv.size() / sizeof key; ++i) {
    const std::uint64_t word = word_of(key, i);
    std::memcpy(kv.data() + i * sizeof word, &word, sizeof word);
  }
}

bool matches(std::span<const std::byte> kv, const Origin& origin) {
  const std::uint64_t key = key_of(origin);
  std::uint64_t difference = 0;
  for (std::size_t i = 0; i < kv.size() / sizeof key; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, kv.data() + i * sizeof word, sizeof word);
    difference |= word ^ word_of(key, i);
  }
  return difference == 0;
}

}  // namespace kvd_pattern
