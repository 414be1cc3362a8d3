#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kvd/store/cache/cache.hpp"
#include "tests/unit/kvd/store/index/index_fixture.hpp"
#include "tests/unit/kvd/store/store_fixture.hpp"

namespace kvd::store {

/// A cache over the store, and tables whose blocks are in HBM as if a request had computed them.
class CacheTest : public StoreTest {
 protected:
  static constexpr std::uint32_t kGroups = 2;
  static constexpr Bytes kRow{256};  ///< in a tier

  ~CacheTest() override {
    for (const DomainId domain : {kA, kB}) {
      for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
        tiers.free(tier, sut.evict(domain, tier, Bytes(1 << 20)));
        EXPECT_EQ(sut.evictable(domain, tier), Bytes(0));
      }
    }
    EXPECT_EQ(blocks.slots(Tier::kHbm) + blocks.slots(Tier::kDram), 0u);
    EXPECT_EQ(fault(), "");
  }
  std::string fault() const {
    for (const std::string& found : {sut.validate(), blocks.validate(), tiers.validate()}) {
      if (!found.empty()) return found;
    }
    return {};
  }
  /// Sealed blocks of this many tokens, in HBM.
  void compute(BlockTable& table, std::uint32_t count, DomainId domain = kA) {
    std::uint32_t i = table.size();
    blocks.extend(table, taker(domain), count * kGroups);
    for (const SlotId slot : taken(count * kGroups, taker(domain))) {
      blocks.place(table, i, Tier::kHbm, slot);
      blocks.settle(table, i++, Tier::kHbm, true);
    }
  }
  /// Names the table's leading blocks, from `first` on, as far as possible. Returns how many were
  /// named.
  std::uint32_t name(BlockTable& table, const std::vector<Digest>& chain, std::uint32_t first = 0,
                     const KeySpace& space = space_of(1)) {
    std::uint32_t named = 0;
    for (std::uint32_t i = first; i < table.blocks(); ++i) {
      const auto done = sut.name(table, {space, i, chain[i], kSaved});
      EXPECT_TRUE(done.ok());
      if (done.ok() && *done) ++named;
    }
    return named;
  }
  /// A copy of its first blocks into DRAM is under way.
  void begin_copy(BlockTable& table) {
    for (std::uint32_t i = 0; i < kGroups; ++i) {
      blocks.place(table, i, Tier::kDram, taken_in_dram(1)[0]);
    }
  }
  /// Its blocks number `block` have a copy in DRAM.
  void copy(BlockTable& table, std::uint32_t block) {
    for (std::uint32_t i = block * kGroups; i < (block + 1) * kGroups; ++i) {
      blocks.place(table, i, Tier::kDram, taken_in_dram(1)[0]);
      blocks.settle(table, i, Tier::kDram, true);
    }
  }
  void truncate(BlockTable& table, std::uint32_t kept = 0) {
    const SlotsByTier slots = sut.truncate(table, kept);
    tiers.free(Tier::kHbm, slots[0]);
    tiers.free(Tier::kDram, slots[1]);
  }

  Blocks blocks{tiers};
  pool::Quotas quotas{};  ///< of both tiers
  Cache sut{
      tiers, blocks, {.secret = {1, 2, 3, 4}, .eviction = EvictionKind::kLru}, {&quotas, &quotas}};
  const std::vector<Digest> prompt = digests(1, 8);
};

}  // namespace kvd::store
