#pragma once

#include <cstddef>
#include <cstdint>

namespace kvd::kernels {

enum class KvPart : std::uint8_t { kKey = 0, kValue = 1 };

/// Where keys and values stand inside a slot: block-first, so that a block of several layers moves
/// as one run of bytes. Writer and reader use offset() and nothing else.
///
///   slot = layers_per_block x { keys, values } x block_tokens x kv_heads x head_dim   floats
///
/// Source: SuperInfer sec. 5 (block-first); kvd/DESIGN.md "Words" (layers_per_block).
/// Units:  offsets count floats.
struct KvLayout {
  std::uint32_t layers_per_block = 1;
  std::uint32_t block_tokens = 16;
  std::uint32_t kv_heads = 1;
  std::uint32_t head_dim = 1;

  /// Floats of one token's keys (or values) in one layer: all heads, one after the other.
  [[nodiscard]] constexpr std::size_t row() const { return std::size_t{kv_heads} * head_dim; }
  /// Where the row of a token begins. `layer` and `token` count within the block.
  [[nodiscard]] constexpr std::size_t offset(std::uint32_t layer, KvPart part,
                                             std::uint32_t token) const {
    return ((std::size_t{layer} * 2 + static_cast<std::size_t>(part)) * block_tokens + token) *
           row();
  }
  [[nodiscard]] constexpr std::size_t bytes_per_token_per_layer() const {
    return 2 * row() * sizeof(float);
  }
  [[nodiscard]] constexpr std::size_t slot_bytes() const {
    return bytes_per_token_per_layer() * block_tokens * layers_per_block;
  }
};

}  // namespace kvd::kernels
