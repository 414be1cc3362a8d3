// What a table says of its blocks, when its counts of changes grow, and what no table may do.
#include "kvd/store/blocks/block_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvd/store/blocks/blocks.hpp"
#include "tests/unit/kvd/store/store_fixture.hpp"

namespace kvd::store {
namespace {

using pool::SlotState;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint32_t kTableGroups = 3;

class BlockTableTest : public StoreTest {
 protected:
  ~BlockTableTest() override {
    EXPECT_EQ(blocks.validate(), "");
    EXPECT_EQ(blocks.validate(sut), "");
  }
  /// New blocks of each group, with slots in HBM that are being filled.
  void grow(std::uint32_t count = 1) {
    std::uint32_t i = sut.size();
    blocks.extend(sut, taker(), count * kTableGroups);
    for (const SlotId slot : taken(count * kTableGroups)) blocks.place(sut, i++, Tier::kHbm, slot);
  }
  void copy(std::uint32_t i) {
    blocks.place(sut, i, Tier::kDram, taken_in_dram(1)[0]);
    blocks.settle(sut, i, Tier::kDram, true);
  }
  /// By how much the count of changes grows.
  template <class Act>
  std::uint64_t changes(Act act) {
    const std::uint64_t before = sut.changes();
    act();
    return sut.changes() - before;
  }

  Blocks blocks{tiers};
  BlockTable sut{kTableGroups};
};

TEST_F(BlockTableTest, WithoutGroupsItHasNothing) {
  const BlockTable none;
  EXPECT_EQ(none.groups(), 0u);
  EXPECT_EQ(none.blocks(), 0u);
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(none.all_in(Tier::kHbm)) << "all of nothing";
  EXPECT_FALSE(none.parked());
}

TEST_F(BlockTableTest, CountsBlocksOfEachGroupOnce) {
  grow(2);
  EXPECT_EQ(sut.size(), 6u);
  EXPECT_EQ(sut.blocks(), 2u);
  EXPECT_EQ(sut.in(Tier::kHbm), 6);
  EXPECT_EQ(sut.in(Tier::kDram), 0);
  EXPECT_TRUE(sut.all_in(Tier::kHbm));
  EXPECT_FALSE(sut.all_in(Tier::kDram));
}

TEST_F(BlockTableTest, NoTwoOfItsBlocksAreTheSame) {
  grow(3);
  for (std::uint32_t a = 0; a < sut.size(); ++a) {
    for (std::uint32_t b = 0; b < a; ++b) EXPECT_NE(sut[a], sut[b]);
  }
}

TEST_F(BlockTableTest, BlocksThatAreNoMoreAreGivenAgain) {
  grow(2);
  const BlockId last = sut[5];
  const SlotsByTier slots = blocks.truncate(sut, 1);
  tiers.free(Tier::kHbm, slots[0]);
  EXPECT_EQ(blocks.block(last).owners, 0u);
  EXPECT_TRUE(blocks.block(last).at[0].none());
  BlockTable other{1};
  blocks.extend(other, taker(kB, kOtherClass), 1);
  EXPECT_EQ(other[0], last);
  EXPECT_EQ(blocks.kind(last).domain, kB);
  EXPECT_EQ(blocks.kind(last).model_class, kOtherClass);
  EXPECT_FALSE(blocks.block(last).sealed);
  (void)blocks.truncate(other, 0);
}

TEST_F(BlockTableTest, CopiesAreCountedByGroup) {
  grow(2);
  copy(1);
  copy(4);
  copy(3);
  EXPECT_EQ(sut.doubled(), 3);
  EXPECT_EQ(sut.doubled_alone(), 3);
  EXPECT_EQ(sut.doubled_alone(0), 1);
  EXPECT_EQ(sut.doubled_alone(1), 2);
  EXPECT_EQ(sut.doubled_alone(2), 0);
  tiers.free(Tier::kDram, {blocks.vacate(sut, 4, Tier::kDram)});
  EXPECT_EQ(sut.doubled_alone(1), 1);
  tiers.free(Tier::kHbm, {blocks.vacate(sut, 3, Tier::kHbm)});
  EXPECT_EQ(sut.doubled_alone(0), 0) << "a block that is in DRAM alone is no copy";
  EXPECT_EQ(sut.doubled(), 1);
}

TEST_F(BlockTableTest, WhatGetsOrLeavesASlotIsAChangeOfThatTier) {
  grow();
  const std::uint64_t hbm = sut.moves(Tier::kHbm), dram = sut.moves(Tier::kDram);
  EXPECT_EQ(hbm, 3u);
  blocks.place(sut, 0, Tier::kDram, taken_in_dram(1)[0]);
  EXPECT_EQ(sut.moves(Tier::kDram), dram + 1);
  EXPECT_EQ(sut.moves(Tier::kHbm), hbm);
  tiers.free(Tier::kHbm, {blocks.vacate(sut, 0, Tier::kHbm)});
  EXPECT_EQ(sut.moves(Tier::kHbm), hbm + 1);
  EXPECT_EQ(changes([&] { (void)blocks.vacate(sut, 0, Tier::kHbm); }), 0u) << "it had none";
  EXPECT_GT(changes([&] { tiers.free(Tier::kHbm, blocks.truncate(sut, 0)[0]); }), 0u);
}

TEST_F(BlockTableTest, ASettledBlockIsAChangeWhereItIsInBothTiers) {
  grow();
  EXPECT_EQ(changes([&] { blocks.settle(sut, 0, Tier::kHbm, true); }), 0u)
      << "it was in HBM before, and is now";
  blocks.place(sut, 0, Tier::kDram, taken_in_dram(1)[0]);
  EXPECT_EQ(changes([&] { blocks.settle(sut, 0, Tier::kDram, true); }), 1u) << "now it is synced";
  EXPECT_EQ(changes([&] { blocks.settle(sut, 0, Tier::kDram, true); }), 0u) << "said twice";
}

TEST_F(BlockTableTest, ABlockArrivesFromDramAlone) {
  grow();
  EXPECT_EQ(sut.arriving(), 0) << "what is computed comes from nowhere";
  blocks.settle(sut, 0, Tier::kHbm, true);
  copy(0);
  tiers.free(Tier::kHbm, {blocks.vacate(sut, 0, Tier::kHbm)});
  blocks.place(sut, 0, Tier::kHbm, taken(1)[0]);
  EXPECT_EQ(sut.arriving(), 1);
  EXPECT_FALSE(blocks.synced(sut, 0));
  tiers.free(Tier::kDram, blocks.truncate(sut, 0)[1]);
  EXPECT_EQ(sut.arriving(), 0) << "with its end";
}

TEST_F(BlockTableTest, AnOpenBlockSealsOnceAndOpensNoMore) {
  grow();
  blocks.settle(sut, 2, Tier::kHbm, false);
  EXPECT_EQ(tiers.state(Tier::kHbm, blocks.slot(sut, 2, Tier::kHbm)), SlotState::kOpen);
  blocks.settle(sut, 2, Tier::kHbm, true);
  blocks.settle(sut, 2, Tier::kHbm, false);
  EXPECT_EQ(tiers.state(Tier::kHbm, blocks.slot(sut, 2, Tier::kHbm)), SlotState::kSealed);
  EXPECT_TRUE(blocks.block(sut[2]).sealed);
}

TEST_F(BlockTableTest, ABlockThatMovesStaysAsOpenAsItWas) {
  grow();
  blocks.settle(sut, 0, Tier::kHbm, false);
  blocks.place(sut, 0, Tier::kDram, taken_in_dram(1)[0]);
  blocks.settle(sut, 0, Tier::kDram, false);
  const SlotId to = taken_in_dram(1)[0];
  tiers.free(Tier::kDram, {blocks.relocate(sut, 0, Tier::kDram, to)});
  EXPECT_EQ(tiers.state(Tier::kDram, to), SlotState::kOpen);
  EXPECT_EQ(sut.in(Tier::kDram), 1);
  EXPECT_EQ(sut.doubled(), 1);
}

TEST_F(BlockTableTest, TruncateGivesTheSlotsInOrderAndKeepsTheRest) {
  grow(3);
  copy(3);
  std::vector<SlotId> beyond;
  for (std::uint32_t i = 3; i < 9; ++i) beyond.push_back(blocks.slot(sut, i, Tier::kHbm));
  const SlotId in_dram = blocks.slot(sut, 3, Tier::kDram), kept = blocks.slot(sut, 2, Tier::kHbm);
  const SlotsByTier slots = blocks.truncate(sut, 1);
  EXPECT_EQ(slots[0], beyond);
  EXPECT_THAT(slots[1], ElementsAre(in_dram));
  EXPECT_EQ(blocks.slot(sut, 2, Tier::kHbm), kept);
  EXPECT_EQ(blocks.references(), 3u);
  EXPECT_THAT(blocks.truncate(sut, 1)[0], IsEmpty());
}

TEST_F(BlockTableTest, AbortsOnWhatOnlyABugAsksFor) {
  grow();
  EXPECT_DEATH(blocks.extend(sut, taker(), kTableGroups + 1), "some layer groups only");
  BlockTable none;
  EXPECT_DEATH(blocks.extend(none, taker(), 1), "some layer groups only");
  EXPECT_DEATH(blocks.place(sut, 0, Tier::kHbm, SlotId(SlabIndex(0), 7)), "one slot in a tier");
  EXPECT_DEATH(blocks.place(sut, 0, Tier::kDram, SlotId()), "one slot in a tier");
  EXPECT_DEATH((void)blocks.relocate(sut, 0, Tier::kDram, SlotId(SlabIndex(0), 0)),
               "from one slot of a tier to another");
  EXPECT_DEATH((void)blocks.block(BlockId(99)), "no such block");
  EXPECT_DEATH((void)blocks.block(BlockId()), "no such block");
}

}  // namespace
}  // namespace kvd::store
