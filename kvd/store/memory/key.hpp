#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/ids.hpp"

namespace kvd::store {

/// The space within which blocks find each other: what their bytes mean, and whose they are. Blocks
/// of two spaces are never each other's, whatever their digests.
struct KeySpace {
  /// The value of `devices` for rows that engines place. No request's rows have it, whatever class
  /// and fingerprint an engine chooses. Requests' rows follow each other in chains; these do not.
  static constexpr std::uint64_t kPlacedByEngines = ~std::uint64_t{0};

  Fingerprint fingerprint;  ///< as the engine says
  DomainId domain;
  ClassId model_class{};      ///< none where blocks are not of a pool
  std::uint64_t devices = 0;  ///< a number for those whose HBM has them
  [[nodiscard]] constexpr bool placed_by_engines() const { return devices == kPlacedByEngines; }
  friend constexpr auto operator<=>(const KeySpace&, const KeySpace&) = default;
};

/// What a cached block is found by. Its fields are compared one by one, never mixed into a hash of
/// their own: two domains with the same prompt have two blocks.
/// Source: kvd. Outside of this node a block goes by another name (ipc/digest/fingerprint.hpp).
struct Key {
  KeySpace space;
  Digest digest;  ///< of the block's tokens and all before them
  friend constexpr auto operator<=>(const Key&, const Key&) = default;
};

/// What a block is called outside of this node. It follows from the domain's name, the engine's
/// fingerprint and the block's digest.
using OutsideName = std::function<Digest(const std::string&, const Fingerprint&, const Digest&)>;

/// Where a cached block can be, the fastest first: in the memories of kvd::Tier, or in a file.
enum class CacheTier : std::uint8_t { kHbm = 0, kDram = 1, kDisk = 2 };
constexpr std::size_t kCacheTiers = 3;
constexpr std::size_t index(CacheTier tier) { return static_cast<std::size_t>(tier); }
constexpr const char* name(CacheTier tier) {
  constexpr const char* kNames[kCacheTiers] = {"hbm", "dram", "disk"};
  return kNames[index(tier)];
}

/// Where in its tier a cached block is. Only the tier knows what the number means; 0: not there.
using Place = Id<struct PlaceTag, std::uint32_t>;

}  // namespace kvd::store
