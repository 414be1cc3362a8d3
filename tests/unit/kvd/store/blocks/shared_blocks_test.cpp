// Blocks that several tables name: whose they are, what a move of one changes, and when they end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvd/store/blocks/blocks.hpp"
#include "tests/unit/kvd/store/store_fixture.hpp"

namespace kvd::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint32_t kTwoGroups = 2;
constexpr EntryId kRowKey{7};

class SharedBlocksTest : public StoreTest {
 protected:
  SharedBlocksTest() {
    grow(first, 4);
    row = sut.name(first, 0, kRowKey);
    sut.share(second, row);
  }
  ~SharedBlocksTest() override {
    for (BlockTable* table : {&first, &second}) end(*table);
    if (sut.live(row)) {
      const SlotsByTier slots = sut.release(row);
      tiers.free(Tier::kHbm, slots[0]);
      tiers.free(Tier::kDram, slots[1]);
    }
    EXPECT_EQ(sut.slots(Tier::kHbm) + sut.slots(Tier::kDram), 0u);
    EXPECT_EQ(sut.validate(), "");
  }
  /// New blocks, sealed in HBM.
  void grow(BlockTable& of, std::uint32_t count) {
    std::uint32_t i = of.size();
    sut.extend(of, taker(), count);
    for (const SlotId slot : taken(count)) {
      sut.place(of, i, Tier::kHbm, slot);
      sut.settle(of, i++, Tier::kHbm, true);
    }
  }
  void end(BlockTable& of) {
    const SlotsByTier slots = sut.truncate(of, 0);
    tiers.free(Tier::kHbm, slots[0]);
    tiers.free(Tier::kDram, slots[1]);
  }
  std::string fault() const {
    for (const std::string& found :
         {sut.validate(), sut.validate(first), sut.validate(second), tiers.validate()}) {
      if (!found.empty()) return found;
    }
    return {};
  }

  Blocks sut{tiers};
  BlockTable first{kTwoGroups}, second{kTwoGroups};
  RowId row;
};

TEST_F(SharedBlocksTest, TwoTablesNameTheSameBlocks) {
  EXPECT_EQ(second[0], first[0]);
  EXPECT_EQ(second[1], first[1]);
  EXPECT_TRUE(sut.shared(first, 0));
  EXPECT_FALSE(sut.shared(first, 2)) << "it has no key";
  EXPECT_EQ(second.in(Tier::kHbm), 2);
  EXPECT_EQ(sut.slots(Tier::kHbm), 4u) << "each slot once";
  EXPECT_EQ(sut.references(), 6u);
  EXPECT_EQ(sut.usage(kA).owned[0], kSlot * 4);
  EXPECT_EQ(sut.usage(), sut.usage(kA)) << "the only domain that has any";
  EXPECT_EQ(fault(), "");
}

TEST_F(SharedBlocksTest, AMoveOfOneChangesTheTablesOfAll) {
  grow(second, 2);
  const std::uint64_t before = second.changes(), moves = second.moves(Tier::kHbm);
  const SlotId copy = taken_in_dram(1)[0];
  sut.place(first, 1, Tier::kDram, copy);
  sut.settle(first, 1, Tier::kDram, true);
  EXPECT_EQ(second.in(Tier::kDram), 1);
  EXPECT_EQ(second.doubled(), 1);
  EXPECT_EQ(second.doubled_alone(), 0) << "the copy is the first one's too";
  EXPECT_GT(second.changes(), before);
  EXPECT_EQ(second.moves(Tier::kHbm), moves) << "nothing has moved there";
  EXPECT_EQ(fault(), "");
  tiers.free(Tier::kHbm, {sut.vacate(second, 1, Tier::kHbm)});
  EXPECT_EQ(first.in(Tier::kHbm), 3);
  EXPECT_EQ(first.doubled(), 0);
  EXPECT_TRUE(sut.missing(first, 1));
  EXPECT_GT(second.moves(Tier::kHbm), moves);
  EXPECT_EQ(fault(), "");
}

TEST_F(SharedBlocksTest, TheLastOwnerHasTheCopyToItself) {
  for (std::uint32_t i = 0; i < 3; ++i) {
    sut.place(first, i, Tier::kDram, taken_in_dram(1)[0]);
    sut.settle(first, i, Tier::kDram, true);
  }
  EXPECT_EQ(first.doubled(), 3);
  EXPECT_EQ(first.doubled_alone(), 1) << "what has no key";
  end(second);
  EXPECT_EQ(first.doubled_alone(), 3);
  EXPECT_EQ(first.doubled_alone(0), 2);
  EXPECT_EQ(fault(), "");
}

TEST_F(SharedBlocksTest, OneOwnerLessLeavesItToTheOthers) {
  const std::vector<SlotId> own = {sut.slot(first, 2, Tier::kHbm), sut.slot(first, 3, Tier::kHbm)};
  const std::uint64_t before = second.changes();
  const SlotsByTier slots = sut.truncate(first, 0);
  EXPECT_EQ(slots[0], own) << "of the shared ones none";
  EXPECT_GT(second.changes(), before) << "what it may do with them has changed";
  tiers.free(Tier::kHbm, slots[0]);
  EXPECT_FALSE(sut.shared(second, 0));
  EXPECT_EQ(second.in(Tier::kHbm), 2);
  EXPECT_EQ(sut.usage(kA).owned[0], kSlot * 2);
  EXPECT_EQ(fault(), "");
}

TEST_F(SharedBlocksTest, WithoutAnyOwnerItIsCached) {
  end(first);
  EXPECT_THAT(sut.truncate(second, 0)[0], IsEmpty());
  EXPECT_EQ(sut.usage(kA).owned[0], Bytes(0));
  EXPECT_EQ(sut.usage(kA).cached[0], kSlot * 2);
  EXPECT_EQ(sut.usage(kA, kClass), sut.usage(kA));
  EXPECT_EQ(sut.usage(kA, kOtherClass), Usage{});
  EXPECT_TRUE(sut.complete(row, Tier::kHbm));
  EXPECT_FALSE(sut.complete(row, Tier::kDram));
  EXPECT_EQ(sut.validate(), "");
  sut.share(second, row);
  EXPECT_EQ(sut.usage(kA).owned[0], kSlot * 2) << "whoever comes next has it";
  EXPECT_EQ(fault(), "");
}

TEST_F(SharedBlocksTest, ACachedRowLeavesATierAndEnds) {
  for (std::uint32_t i = 0; i < kTwoGroups; ++i) {
    sut.place(first, i, Tier::kDram, taken_in_dram(1)[0]);
    sut.settle(first, i, Tier::kDram, true);
  }
  end(first);
  end(second);
  const std::vector<SlotId> left = sut.vacate(row, Tier::kHbm);
  EXPECT_THAT(left, SizeIs(kTwoGroups));
  tiers.free(Tier::kHbm, left);
  EXPECT_THAT(sut.vacate(row, Tier::kHbm), IsEmpty());
  EXPECT_EQ(sut.usage(kA).cached[0], Bytes(0));
  EXPECT_EQ(sut.usage(kA).cached[1], kSlot * 2);
  const SlotsByTier slots = sut.release(row);
  EXPECT_THAT(slots[0], IsEmpty());
  EXPECT_THAT(slots[1], SizeIs(kTwoGroups));
  tiers.free(Tier::kDram, slots[1]);
  EXPECT_FALSE(sut.live(row));
  EXPECT_EQ(sut.usage(kA), Usage{});
}

TEST_F(SharedBlocksTest, SaysWhichRowsMoved) {
  (void)sut.take_moved();
  sut.place(first, 2, Tier::kDram, taken_in_dram(1)[0]);
  EXPECT_THAT(sut.take_moved(), IsEmpty()) << "it has no key";
  sut.place(second, 0, Tier::kDram, taken_in_dram(1)[0]);
  EXPECT_THAT(sut.take_moved(), ElementsAre(row));
  EXPECT_THAT(sut.take_moved(), IsEmpty());
}

TEST_F(SharedBlocksTest, ValidateSeesATableThatTheRowDoesNotKnow) {
  const BlockTable copied = second;
  EXPECT_NE(sut.validate(copied), "");
  EXPECT_EQ(fault(), "");
}

TEST_F(SharedBlocksTest, BlocksThatMayChangeGetNoKey) {
  sut.extend(second, taker(), kTwoGroups);
  std::uint32_t i = kTwoGroups;
  for (const SlotId slot : taken(kTwoGroups)) sut.place(second, i++, Tier::kHbm, slot);
  EXPECT_DEATH((void)sut.name(second, 1, EntryId(9)), "may change");
  EXPECT_DEATH((void)sut.name(first, 0, EntryId(9)), "has a name");
  EXPECT_DEATH(sut.share(first, row), "twice");
  EXPECT_DEATH((void)sut.release(row), "a table names");
}

}  // namespace
}  // namespace kvd::store
