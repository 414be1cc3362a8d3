// Many blocks of a table that move at once, beside the same blocks moved one by one.
#include "kvd/store/blocks/block_moves.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/store/store_fixture.hpp"

namespace kvd::store {
namespace {

using pool::SlotState;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two blocks of two groups: the first is full, has a key, and a second table names it; the second
/// is half full and nobody can find it.
class BlockMovesTest : public StoreTest {
 protected:
  BlockMovesTest() {
    blocks.extend(table, taker(), 4);
    sut.place(table, all, Tier::kHbm, taken(4));
    sut.settle(table, all, Tier::kHbm, 2);
    row = blocks.name(table, 0, EntryId(7));
    blocks.share(other, row);
  }
  ~BlockMovesTest() override {
    EXPECT_EQ(fault(), "");
    for (BlockTable* each : {&table, &other}) release(blocks.truncate(*each, 0));
    release(blocks.release(row));
    EXPECT_EQ(blocks.slots(Tier::kHbm) + blocks.slots(Tier::kDram), 0u);
    EXPECT_EQ(fault(), "");
  }
  void release(const SlotsByTier& slots) {
    tiers.free(Tier::kHbm, slots[0]);
    tiers.free(Tier::kDram, slots[1]);
  }
  std::string fault() const {
    for (const std::string& found :
         {blocks.validate(), blocks.validate(table), blocks.validate(other), tiers.validate()}) {
      if (!found.empty()) return found;
    }
    return {};
  }
  void copy() {
    sut.place(table, all, Tier::kDram, taken_in_dram(4));
    sut.settle(table, all, Tier::kDram, 2);
  }

  const std::vector<std::uint32_t> all{0, 1, 2, 3};
  Blocks blocks{tiers};
  BlockMoves sut{blocks};
  BlockTable table{2}, other{2};
  RowId row;
};

TEST_F(BlockMovesTest, SettledTogetherTheyAreAsOneByOne) {
  EXPECT_TRUE(blocks.block(table[1]).sealed);
  EXPECT_FALSE(blocks.block(table[2]).sealed);
  EXPECT_EQ(in(Tier::kHbm, SlotState::kSealed), 2u);
  EXPECT_EQ(in(Tier::kHbm, SlotState::kOpen), 2u);
  copy();
  EXPECT_EQ(in(Tier::kDram, SlotState::kSealed), 2u);
  EXPECT_EQ(in(Tier::kDram, SlotState::kOpen), 2u);
  EXPECT_TRUE(blocks.synced(table, 1));
  EXPECT_DEATH(sut.settle(table, all, Tier::kHbm, 2), "may not go from its state");
}

TEST_F(BlockMovesTest, WhatDramLacksAndWhatBothHaveIsToldApart) {
  EXPECT_EQ(sut.copied(table, 4).lacking, all);
  EXPECT_THAT(sut.copied(table, 4).synced, IsEmpty());
  sut.place(table, std::vector<std::uint32_t>{0, 2}, Tier::kDram, taken_in_dram(2));
  EXPECT_THAT(sut.copied(table, 4).synced, IsEmpty()) << "its copy is under way";
  sut.settle(table, std::vector<std::uint32_t>{0, 2}, Tier::kDram, 2);
  EXPECT_THAT(sut.copied(table, 4).lacking, ElementsAre(1, 3));
  EXPECT_THAT(sut.copied(table, 4).synced, ElementsAre(0)) << "the other one is not full";
  EXPECT_THAT(sut.copied(table, 1).lacking, IsEmpty());
  EXPECT_THAT(sut.lacking(table, 3, Tier::kDram), ElementsAre(1));
  EXPECT_THAT(sut.lacking(table, 4, Tier::kHbm), IsEmpty());
}

TEST_F(BlockMovesTest, WhatOthersNameStays) {
  copy();
  EXPECT_EQ(table.doubled(), 4);
  EXPECT_EQ(table.doubled_alone(), 2);
  const std::vector<SlotId> own{blocks.slot(table, 2, Tier::kHbm),
                                blocks.slot(table, 3, Tier::kHbm)};
  const std::vector<SlotId> left = sut.vacate_own(table, all, Tier::kHbm);
  EXPECT_EQ(left, own);
  EXPECT_EQ(table.in(Tier::kHbm), 2);
  EXPECT_EQ(table.doubled_alone(), 0);
  EXPECT_EQ(blocks.usage(kA).owned[0], kSlot * 2);
  EXPECT_THAT(sut.vacate_own(table, all, Tier::kHbm), IsEmpty()) << "they had none";
  tiers.free(Tier::kHbm, left);
}

TEST_F(BlockMovesTest, BlocksOnTheirWayBackArrive) {
  copy();
  tiers.free(Tier::kHbm, sut.vacate_own(table, all, Tier::kHbm));
  const std::vector<std::uint32_t> back = sut.lacking(table, 4, Tier::kHbm);
  EXPECT_THAT(back, ElementsAre(2, 3));
  sut.place(table, back, Tier::kHbm, taken(2));
  EXPECT_EQ(table.arriving(), 2);
  EXPECT_EQ(fault(), "");
  tiers.free(Tier::kHbm, sut.vacate_own(table, std::vector<std::uint32_t>{2}, Tier::kHbm));
  EXPECT_EQ(table.arriving(), 1) << "given up on the way";
  sut.settle(table, std::vector<std::uint32_t>{3}, Tier::kHbm, 2);
  EXPECT_EQ(table.arriving(), 0);
}

TEST_F(BlockMovesTest, PlacesMayComeInAnyOrder) {
  const std::vector<std::uint32_t> places{3, 0, 2};
  const std::vector<SlotId> slots = taken_in_dram(3);
  sut.place(table, places, Tier::kDram, slots);
  for (std::size_t k = 0; k < places.size(); ++k) {
    EXPECT_EQ(blocks.slot(table, places[k], Tier::kDram), slots[k]);
  }
  EXPECT_EQ(table.doubled_alone(), 2);
  sut.settle(table, places, Tier::kDram, 2);
  EXPECT_EQ(fault(), "");
}

TEST_F(BlockMovesTest, WhatWasComputedIsSealedWhereItIsFull) {
  BlockTable own{2};
  blocks.extend(own, taker(), 4);
  sut.place(own, all, Tier::kHbm, taken(4));
  for (const std::uint32_t full : {2U, 2U, 4U}) {
    sut.written(own, 0, 4, full);
    EXPECT_EQ(in(Tier::kHbm, SlotState::kFilling), 0u);
    EXPECT_EQ(in(Tier::kHbm, SlotState::kSealed), 2u + full);
    EXPECT_EQ(blocks.block(own[3]).sealed, full == 4);
  }
  EXPECT_EQ(blocks.validate(own), "");
  release(blocks.truncate(own, 0));
}

TEST_F(BlockMovesTest, AbortsOnABlockWithASlotOrWithout) {
  EXPECT_DEATH(sut.place(table, all, Tier::kHbm, std::vector<SlotId>(4)), "one slot in a tier");
  EXPECT_DEATH(sut.place(table, all, Tier::kDram, std::vector<SlotId>(3)), "gets one slot");
}

}  // namespace
}  // namespace kvd::store
