#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "kvd/store/index/index.hpp"

namespace kvd::store {

/// A digest that stands for `number`, and as random as one is: numbers in a row would spread over a
/// table better than digests do.
inline Digest digest(std::uint64_t number) {
  std::mt19937_64 random(number);
  Digest made;
  for (std::uint8_t& byte : made.bytes) byte = static_cast<std::uint8_t>(random());
  return made;
}

/// Names of blocks first, first + 1, …
inline std::vector<Digest> digests(std::uint64_t first, std::uint32_t count) {
  std::vector<Digest> made;
  for (std::uint32_t i = 0; i < count; ++i) made.push_back(digest(first + i));
  return made;
}

inline KeySpace space_of(std::uint32_t domain, std::uint64_t fingerprint = 1) {
  return {{digest(fingerprint)}, DomainId(domain)};
}

inline constexpr SecondsPerByte kSaved{1e-9};

/// Caches a chain in a tier, at places `place`, `place` + 1, … Whoever stored it has released it.
inline std::vector<EntryId> store_chain(Index& index, SpaceId space,
                                        const std::vector<Digest>& chain, CacheTier tier,
                                        std::uint32_t place) {
  std::vector<EntryId> made;
  for (const Digest& each : chain) {
    const EntryId parent = made.empty() ? EntryId() : made.back();
    const auto id = index.insert({space, parent, each, kSaved});
    KVD_CHECK(id.ok() && index.place(*id, tier, Place(place++)), "the chain was there already");
    made.push_back(*id);
  }
  index.release(made);
  return made;
}

}  // namespace kvd::store
