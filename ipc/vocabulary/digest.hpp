#pragma once

#include <array>
#include <compare>
#include <cstdint>

namespace kvd {

/// 32 bytes that stand for content: its SHA-256, or what an engine uses in its place.
struct Digest {
  std::array<std::uint8_t, 32> bytes{};
  friend constexpr auto operator<=>(const Digest&, const Digest&) = default;
};

/// What the bytes of a block mean beside its tokens: model, number format, layout, which of its
/// layers and ranks (ipc/digest/fingerprint.hpp). Blocks of two fingerprints are never each
/// other's.
struct Fingerprint {
  Digest digest;
  friend constexpr auto operator<=>(const Fingerprint&, const Fingerprint&) = default;
};

}  // namespace kvd
