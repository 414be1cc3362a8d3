// Blocks that outlive their requests: found again, shared and evicted.
#include "kvd/store/cache/cache.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/store/cache/cache_fixture.hpp"

namespace kvd::store {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(CacheTest, WhatARequestLeavesIsFoundByTheNext) {
  BlockTable first{kGroups}, second{kGroups};
  compute(first, 3);
  EXPECT_EQ(name(first, prompt), 3u);
  const BlockId kept = first[0];
  truncate(first);
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), kRow * 3);
  EXPECT_EQ(sut.share(second, space_of(1), prompt), 3u);
  EXPECT_EQ(second[0], kept);
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), Bytes(0)) << "a table names them again";
  EXPECT_EQ(fault(), "");
  truncate(second);
}

TEST_F(CacheTest, WhatRunsIsFoundToo) {
  BlockTable first{kGroups}, second{kGroups};
  compute(first, 2);
  EXPECT_EQ(name(first, prompt), 2u);
  EXPECT_EQ(sut.share(second, space_of(1), prompt), 2u);
  truncate(first);
  EXPECT_EQ(second.in(Tier::kHbm), 4) << "one owner less leaves them to the other";
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), Bytes(0));
  EXPECT_THAT(sut.evict(kA, Tier::kHbm, kRow), IsEmpty()) << "somebody runs on them";
  truncate(second);
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), kRow * 2);
}

TEST_F(CacheTest, WithoutAKeyASlotGoesToTheCaller) {
  BlockTable table{kGroups};
  compute(table, 2);
  EXPECT_EQ(name(table, prompt), 2u);
  compute(table, 1);
  const SlotsByTier slots = sut.truncate(table, 0);
  EXPECT_THAT(slots[0], SizeIs(kGroups)) << "the last block has no key";
  tiers.free(Tier::kHbm, slots[0]);
}

TEST_F(CacheTest, DomainsAndModelsDoNotFindEachOthers) {
  BlockTable first{kGroups}, other{kGroups};
  compute(first, 2);
  EXPECT_EQ(name(first, prompt), 2u);
  truncate(first);
  EXPECT_EQ(sut.share(other, space_of(2), prompt), 0u);
  EXPECT_EQ(sut.share(other, space_of(1, 9), prompt), 0u);
  EXPECT_THAT(sut.evict(kB, Tier::kHbm, kRow), IsEmpty()) << "what others cache is theirs";
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), kRow * 2);
}

TEST_F(CacheTest, TheSecondThatComputesTheSameKeepsItsOwn) {
  BlockTable first{kGroups}, second{kGroups};
  compute(first, 2);
  compute(second, 3);
  EXPECT_EQ(name(first, prompt), 2u);
  EXPECT_EQ(name(second, prompt), 0u);
  EXPECT_NE(first[0], second[0]);
  truncate(first);
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), kRow * 2);
  truncate(second);
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), kRow * 2) << "it had none to leave";
  EXPECT_EQ(fault(), "");
}

TEST_F(CacheTest, ATableGetsWhatIsKnownBehindItsOwn) {
  BlockTable first(kGroups), second(kGroups);
  compute(first, 2);
  ASSERT_EQ(name(first, prompt), 2u);
  EXPECT_EQ(sut.share(second, space_of(1), prompt), 2u);
  compute(first, 3);
  ASSERT_EQ(name(first, prompt, 2), 3u);
  EXPECT_EQ(sut.share(second, space_of(1), std::span(prompt).first(4)), 4u);
  EXPECT_EQ(second.blocks(), 4u);
  EXPECT_EQ(second[7], first[7]);
  truncate(first);
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), kRow) << "of the other four each has a lease";
  truncate(second);
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), kRow * 5);
}

TEST_F(CacheTest, EvictsWhatWasAskedForLeastAndTailsFirst) {
  BlockTable old{kGroups}, asked{kGroups};
  const std::vector<Digest> other = digests(100, 2);
  compute(old, 2);
  EXPECT_EQ(name(old, prompt), 2u);
  truncate(old);
  compute(asked, 2);
  EXPECT_EQ(name(asked, other), 2u);
  truncate(asked);
  tiers.free(Tier::kHbm, sut.evict(kA, Tier::kHbm, kRow));
  EXPECT_EQ(sut.share(asked, space_of(1), prompt), 1u) << "without its first none is of use";
  truncate(asked);
  tiers.free(Tier::kHbm, sut.evict(kA, Tier::kHbm, kRow * 2));
  EXPECT_EQ(sut.share(asked, space_of(1), other), 0u) << "the first chain was asked for since";
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), kRow);
}

TEST_F(CacheTest, WhatHasACopyInDramOutlivesItsPlaceInHbm) {
  BlockTable table{kGroups};
  compute(table, 1);
  EXPECT_EQ(name(table, prompt), 1u);
  copy(table, 0);
  truncate(table);
  EXPECT_EQ(sut.evictable(kA, Tier::kDram), kRow);
  tiers.free(Tier::kHbm, sut.evict(kA, Tier::kHbm, kRow));
  EXPECT_EQ(sut.share(table, space_of(1), prompt), 1u);
  EXPECT_EQ(table.in(Tier::kHbm), 0);
  EXPECT_EQ(table.in(Tier::kDram), 2);
  EXPECT_EQ(fault(), "");
  truncate(table);
}

TEST_F(CacheTest, ARowThatNoTierHasWholeIsNotKept) {
  BlockTable table{kGroups};
  compute(table, 2);
  EXPECT_EQ(name(table, prompt), 2u);
  copy(table, 1);
  tiers.free(Tier::kHbm, {blocks.vacate(table, 0, Tier::kHbm)});
  blocks.place(table, 0, Tier::kDram, taken_in_dram(1)[0]);
  blocks.settle(table, 0, Tier::kDram, true);
  truncate(table);
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), kRow) << "the second one alone";
  BlockTable next{kGroups};
  EXPECT_EQ(sut.share(next, space_of(1), prompt), 0u) << "its first is not there any more";
  compute(next, 1);
  EXPECT_EQ(name(next, prompt), 1u) << "computed again, it is known again";
  truncate(next);
  EXPECT_EQ(sut.share(next, space_of(1), prompt), 2u);
  EXPECT_EQ(fault(), "");
  truncate(next);
}

TEST_F(CacheTest, ATierHasNothingWhileTheCopyIntoItIsUnderWay) {
  BlockTable table{kGroups}, next{kGroups};
  compute(table, 1);
  EXPECT_EQ(name(table, prompt), 1u);
  begin_copy(table);
  EXPECT_EQ(sut.share(next, space_of(1), prompt), 1u);
  EXPECT_EQ(next.in(Tier::kDram), 2) << "where it is going is the same for both";
  truncate(next);
  EXPECT_EQ(table.in(Tier::kDram), 2);
  truncate(table);
  EXPECT_EQ(sut.evictable(kA, Tier::kDram), Bytes(0)) << "its bytes are not there";
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), kRow);
}

TEST_F(CacheTest, ATierHasItOnceTheCopyHasEnded) {
  BlockTable table{kGroups}, next{kGroups};
  compute(table, 1);
  EXPECT_EQ(name(table, prompt), 1u);
  begin_copy(table);
  EXPECT_EQ(sut.share(next, space_of(1), prompt), 1u) << "in HBM alone, so far";
  for (std::uint32_t i = 0; i < kGroups; ++i) blocks.settle(table, i, Tier::kDram, true);
  truncate(table);
  truncate(next);
  tiers.free(Tier::kHbm, sut.evict(kA, Tier::kHbm, kRow));
  EXPECT_EQ(sut.share(next, space_of(1), prompt), 1u);
  EXPECT_EQ(next.in(Tier::kDram), 2);
  truncate(next);
}

}  // namespace
}  // namespace kvd::store
