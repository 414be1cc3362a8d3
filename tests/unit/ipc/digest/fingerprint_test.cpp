// What a block's bytes depend on is in its fingerprint; its name outside of the node is its
// domain's alone.
#include "ipc/digest/fingerprint.hpp"

#include <gtest/gtest.h>

#include <set>

#include "tests/unit/ipc/digest/hex.hpp"

namespace kvd::digest {
namespace {

const BlockFacts kFacts{.model = "qwen",
                        .dtype = "bf16",
                        .layout = "kv-first",
                        .rank = 1,
                        .ranks = 2,
                        .first_layer = 4,
                        .layers = Layers(4),
                        .block_tokens = Tokens(16)};

TEST(FingerprintTest, EveryFactIsInIt) {
  std::vector<BlockFacts> facts(9, kFacts);
  facts[1].model = "qwen2";
  facts[2].dtype = "fp8";
  facts[3].layout = "block-first";
  facts[4].rank = 0;
  facts[5].ranks = 4;
  facts[6].first_layer = 0;
  facts[7].layers = Layers(8);
  facts[8].block_tokens = Tokens(32);
  std::set<Fingerprint> seen;
  for (const BlockFacts& each : facts) seen.insert(fingerprint(each));
  EXPECT_EQ(seen.size(), facts.size());
}

TEST(FingerprintTest, WhereOneTextEndsAndTheNextBeginsCounts) {
  BlockFacts a = kFacts, b = kFacts;
  a.model = "qwenbf", a.dtype = "16";
  b.model = "qwen", b.dtype = "bf16";
  EXPECT_NE(fingerprint(a), fingerprint(b));
}

// Names stand in files: they may not change without a new version of the format.
TEST(FingerprintTest, StaysWhatItIs) {
  EXPECT_EQ(hex(fingerprint(kFacts).digest),
            "50b87c03df36a5937c49236958680a99f4c8f7c25b45f907a83dc99d747d4e14");
  HmacSha256 zeros(Digest().bytes);
  EXPECT_EQ(hex(outside_name(zeros, {}, {})),
            "ffc31a0d64093a6c946f815b8d3d27057d4c62f78cf138c77323600b899c97c2");
}

TEST(FingerprintTest, DomainsNameTheSameBlockDifferently) {
  const Fingerprint one = fingerprint(kFacts);
  const Digest block{{7}};
  HmacSha256 secret(Digest{{1}}.bytes), other(Digest{{2}}.bytes);
  EXPECT_NE(outside_name(secret, one, block), outside_name(other, one, block));
  EXPECT_NE(outside_name(secret, one, block), outside_name(secret, {}, block));
  EXPECT_NE(outside_name(secret, one, block), outside_name(secret, one, {}));
}

}  // namespace
}  // namespace kvd::digest
