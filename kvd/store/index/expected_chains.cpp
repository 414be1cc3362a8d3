#include "kvd/store/index/expected_chains.hpp"

#include <cstring>

namespace kvd::store {
namespace {

std::uint64_t word_of(const Digest& digest) {
  std::uint64_t word = 0;
  std::memcpy(&word, digest.bytes.data(), sizeof word);
  return word * 0x9e3779b97f4a7c15ULL;
}

}  // namespace

void ExpectedChains::expect(const Digest& digest, std::uint32_t chain) {
  if (places_.empty()) places_.resize(kPlaces);
  const std::uint64_t word = word_of(digest);
  places_[(word >> 32) % kPlaces] = {static_cast<std::uint32_t>(word), chain};
}

std::uint32_t ExpectedChains::of(const Digest& digest) const {
  if (places_.empty()) return 0;
  const std::uint64_t word = word_of(digest);
  const Place& place = places_[(word >> 32) % kPlaces];
  return place.tag == static_cast<std::uint32_t>(word) ? place.chain : 0;
}

}  // namespace kvd::store
