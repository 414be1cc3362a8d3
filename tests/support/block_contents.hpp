#pragma once

#include <cstdint>
#include <cstring>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/ids.hpp"

namespace kvd::test {

/// The tokens of a request. Two requests with the same leading tokens have the same KV there.
struct Text {
  std::uint64_t document = 0;  ///< 0: tokens that nobody else has and that kvd is not told
  std::uint32_t fork = 0;      ///< how many blocks are the document's
  std::uint64_t rest = 0;      ///< what follows them

  /// Stands for a block's tokens and all before them.
  [[nodiscard]] std::uint64_t block(std::uint32_t number) const {
    const auto mix = [](std::uint64_t a, std::uint64_t b) {
      return (a ^ (b + 0x9e3779b97f4a7c15 + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9;
    };
    const std::uint64_t from = mix(document, number);
    return number < fork ? from : mix(mix(from, fork), rest);
  }
  [[nodiscard]] Digest digest(std::uint32_t number) const {
    Digest digest;
    const std::uint64_t id = block(number);
    std::memcpy(digest.bytes.data(), &id, sizeof id);
    return digest;
  }
};

/// The content of a slot: how many tokens of which block of which request or text, or nothing that
/// matters.
struct Content {
  RequestKey request;
  std::uint64_t text = 0;
  std::int64_t shape = 0;  ///< shape of the model, where a text is named
  std::uint32_t group = 0;
  std::uint32_t block = 0;
  std::int64_t tokens = 0;
  friend bool operator==(const Content&, const Content&) = default;
};

}  // namespace kvd::test
