#include "ipc/digest/fingerprint.hpp"

#include <algorithm>

#include "ipc/digest/cbor.hpp"
#include "ipc/digest/sha256.hpp"

namespace kvd::digest {

Fingerprint fingerprint(const BlockFacts& facts) {
  CborWriter text;
  text.array(9);
  text.string("kvd-block-1");  // another meaning of what follows gets another number
  text.string(facts.model);
  text.string(facts.dtype);
  text.string(facts.layout);
  text.integer(facts.rank);
  text.integer(facts.ranks);
  text.integer(facts.first_layer);
  text.integer(facts.layers.value);
  text.integer(facts.block_tokens.value);
  return {Sha256()(text.text())};
}

Digest outside_name(HmacSha256& secret, const Fingerprint& fingerprint, const Digest& block) {
  std::array<std::uint8_t, 64> text{};
  const auto rest =
      std::copy(fingerprint.digest.bytes.begin(), fingerprint.digest.bytes.end(), text.begin());
  std::copy(block.bytes.begin(), block.bytes.end(), rest);
  return secret(text);
}

}  // namespace kvd::digest
