#pragma once

#include <cstdint>
#include <string>

#include "ipc/digest/sha256.hpp"
#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::digest {

/// Everything besides the tokens and the extra keys of its digest that the bytes of a block depend
/// on.
struct BlockFacts {
  std::string model;                  ///< name and revision of the weights
  std::string dtype;                  ///< of the cached numbers
  std::string layout;                 ///< how the layers lie in a block, in the engine's words
  std::uint32_t rank = 0, ranks = 1;  ///< of the tensor-parallel group
  std::uint32_t first_layer = 0;
  Layers layers;
  Tokens block_tokens;
};

/// Two blocks have the same only if all facts are the same.
/// Source: kvd; SHA-256 of the facts as a CBOR array.
[[nodiscard]] Fingerprint fingerprint(const BlockFacts& facts);

/// What a block is called outside of this node, in files and in remote stores: HMAC-SHA256 of
/// fingerprint and digest under the secret of its domain, which only daemons know that may read
/// each other's blocks of that domain. Two domains have different names for the same prompt, and
/// without the secret nobody can tell from a name which prompt is cached.
[[nodiscard]] Digest outside_name(HmacSha256& secret, const Fingerprint& fingerprint,
                                  const Digest& block);

}  // namespace kvd::digest
