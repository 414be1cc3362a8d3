#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/digest/cbor.hpp"
#include "ipc/digest/pickle.hpp"
#include "ipc/digest/sha256.hpp"
#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::digest {

/// An image, a sound, … in a prompt: the engine's name for its content, and the tokens it takes.
struct MultimodalItem {
  std::string identifier;
  Tokens offset;  ///< where its first token is in the request
  Tokens length;
};

/// What makes equal tokens different content.
struct Extras {
  std::string lora{};                   ///< the adapter's name; empty: none
  std::vector<MultimodalItem> items{};  ///< by offset, not overlapping
  std::string salt{};                   ///< keeps users apart; empty: none
  Tokens prompt{};                      ///< its length, which includes the items
};

/// How vLLM hashes a block: its --prefix-caching-hash-algo.
enum class BlockText : std::uint8_t {
  kCbor,    ///< sha256_cbor
  kPickle,  ///< sha256, which is vLLM's default
};

/// What a chain of digests begins with.
/// `python_hash_seed`: PYTHONHASHSEED of vLLM's processes, where they have it.
[[nodiscard]] Digest vllm_seed(std::optional<std::string_view> python_hash_seed = std::nullopt,
                               BlockText form = BlockText::kCbor);

/// Names the full blocks of a request by what they hold and by all that stands before them: a
/// digest is the SHA-256 of the digest before it, the block's tokens and its extra keys. These are
/// the digests that vLLM gives its own blocks with --prefix-caching-hash-algo=sha256_cbor, or those
/// with sha256 where no two items of a block have one identifier (pickle.hpp says why): an
/// engine may hand over its own instead of its tokens, and both ways find the same blocks.
///
/// Source: vLLM, vllm/v1/core/kv_cache_utils.py at 001cabc1 (generate_block_hash_extra_keys,
/// hash_block_tokens); the seed is a constant since its pull request 51875.
///
/// Owner: one thread; made once and used for all requests. Cost: 2,048 blocks of 16 tokens take
/// some 400 us.
class BlockChain {
 public:
  explicit BlockChain(const Digest& seed = vllm_seed()) : seed_(seed) {}
  BlockChain(const Digest& seed, BlockText form) : seed_(seed), form_(form) {}

  /// Appends the digests of the full blocks of `tokens` that `chain` does not have yet. `tokens`
  /// are all tokens of the request; `chain` has the digests of its first blocks. Errors:
  /// InvalidArgument for blocks without tokens, and for items out of order or without length; with
  /// kPickle also for a block whose text is 64 KiB or more, which Python cuts into frames.
  [[nodiscard]] Status extend(std::span<const std::uint32_t> tokens, Tokens block_tokens,
                              const Extras& extras, std::vector<Digest>& chain);

 private:
  template <class Writer>
  static void write_extras(Writer& text, const Extras& extras, Tokens begin, Tokens end);
  template <class Writer>
  [[nodiscard]] Status extend_as(Writer& text, std::span<const std::uint32_t> tokens,
                                 Tokens block_tokens, const Extras& extras,
                                 std::vector<Digest>& chain);

  Digest seed_;
  Sha256 hash_;
  BlockText form_ = BlockText::kCbor;
  CborWriter cbor_;
  PickleWriter pickle_;
};

}  // namespace kvd::digest
