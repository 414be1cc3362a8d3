// Rows of blocks that have a key: who wants them in HBM, what a new owner finds, and when they
// leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvd/store/blocks/blocks.hpp"
#include "tests/unit/kvd/store/store_fixture.hpp"

namespace kvd::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint32_t kRowGroups = 2;
constexpr EntryId kFirstKey{7}, kSecondKey{8};

class BlockRowsTest : public StoreTest {
 protected:
  ~BlockRowsTest() override { EXPECT_EQ(fault(), ""); }
  [[nodiscard]] std::string fault() const {
    for (const std::string& found :
         {sut.validate(), sut.validate(first), sut.validate(second), tiers.validate()}) {
      if (!found.empty()) return found;
    }
    return {};
  }
  /// A row of new blocks, sealed in HBM.
  void compute(BlockTable& table, const Taker& who = taker()) {
    std::uint32_t i = table.size();
    sut.extend(table, who, kRowGroups);
    for (const SlotId slot : taken(kRowGroups, who)) {
      sut.place(table, i, Tier::kHbm, slot);
      sut.settle(table, i++, Tier::kHbm, true);
    }
  }
  RowId named(BlockTable& table, EntryId key = kFirstKey) {
    compute(table);
    return sut.name(table, table.blocks() - 1, key);
  }
  /// DRAM has, or is to have, the blocks of one group.
  void copy(BlockTable& table, std::uint32_t i, bool done = true) {
    sut.place(table, i, Tier::kDram, taken_in_dram(1)[0]);
    if (done) sut.settle(table, i, Tier::kDram, true);
  }
  void copy_row(BlockTable& table) {
    for (std::uint32_t group = 0; group < kRowGroups; ++group) copy(table, group);
  }
  void leave_hbm(BlockTable& table, std::uint32_t i) {
    tiers.free(Tier::kHbm, {sut.vacate(table, i, Tier::kHbm)});
  }
  void end(BlockTable& table) {
    const SlotsByTier slots = sut.truncate(table, 0);
    tiers.free(Tier::kHbm, slots[0]);
    tiers.free(Tier::kDram, slots[1]);
  }

  Blocks sut{tiers};
  BlockTable first{kRowGroups}, second{kRowGroups};
};

TEST_F(BlockRowsTest, WhoeverRunsWantsItInHbm) {
  const RowId row = named(first);
  sut.share(second, row);
  EXPECT_TRUE(wanted_in_hbm(sut.row(row)));
  first.set_parked(true);
  EXPECT_TRUE(wanted_in_hbm(sut.row(row))) << "the second one runs";
  EXPECT_TRUE(wanted_in_hbm(sut, first, 0)) << "whichever table asks";
  second.set_parked(true);
  EXPECT_FALSE(wanted_in_hbm(sut.row(row)));
  EXPECT_FALSE(wanted_in_hbm(sut, second, 1));
}

TEST_F(BlockRowsTest, ABlockWithoutAKeyIsWantedByItsTableAlone) {
  compute(first);
  EXPECT_TRUE(wanted_in_hbm(sut, first, 0));
  EXPECT_FALSE(wanted_by_others(sut, first, 0));
  first.set_parked(true);
  EXPECT_FALSE(wanted_in_hbm(sut, first, 0));
}

TEST_F(BlockRowsTest, OthersWantItWhileTheyAreNotParked) {
  const RowId row = named(first);
  EXPECT_FALSE(wanted_by_others(sut, first, 0)) << "nobody else names it";
  sut.share(second, row);
  EXPECT_TRUE(wanted_by_others(sut, first, 0));
  EXPECT_TRUE(wanted_by_others(sut, second, 1));
  second.set_parked(true);
  EXPECT_FALSE(wanted_by_others(sut, first, 0));
  EXPECT_TRUE(wanted_by_others(sut, second, 0)) << "the first one runs on it";
}

TEST_F(BlockRowsTest, WhatParkedTablesAloneNameLeavesHbm) {
  const RowId row = named(first);
  sut.share(second, row);
  copy_row(first);
  EXPECT_THAT(vacate_parked(sut, row), IsEmpty()) << "both run";
  first.set_parked(true);
  EXPECT_THAT(vacate_parked(sut, row), IsEmpty()) << "one runs";
  second.set_parked(true);
  const std::vector<SlotId> slots = vacate_parked(sut, row);
  EXPECT_THAT(slots, SizeIs(kRowGroups));
  tiers.free(Tier::kHbm, slots);
  for (const BlockTable* table : {&first, &second}) {
    EXPECT_EQ(table->in(Tier::kHbm), 0);
    EXPECT_EQ(table->doubled(), 0);
    EXPECT_EQ(table->in(Tier::kDram), 2);
  }
  EXPECT_THAT(vacate_parked(sut, row), IsEmpty()) << "it has left";
}

TEST_F(BlockRowsTest, WhatDramHasNotWholeStaysInHbm) {
  const RowId row = named(first);
  first.set_parked(true);
  copy(first, 0);
  EXPECT_THAT(vacate_parked(sut, row), IsEmpty()) << "of one group alone";
  copy(first, 1, false);
  EXPECT_THAT(vacate_parked(sut, row), IsEmpty()) << "its bytes are on their way";
  sut.settle(first, 1, Tier::kDram, true);
  tiers.free(Tier::kHbm, vacate_parked(sut, row));
  EXPECT_EQ(first.in(Tier::kHbm), 0);
}

TEST_F(BlockRowsTest, WhatNobodyNamesIsNotForThoseWhoPark) {
  const RowId row = named(first);
  copy_row(first);
  first.set_parked(true);
  end(first);
  EXPECT_THAT(vacate_parked(sut, row), IsEmpty()) << "cached rows leave by their policy";
  EXPECT_EQ(sut.usage(kA).cached[0], kSlot * 2);
}

TEST_F(BlockRowsTest, WhatIsOnItsWayIsSoForANewOwnerToo) {
  const RowId row = named(first);
  copy_row(first);
  for (std::uint32_t group = 0; group < kRowGroups; ++group) {
    leave_hbm(first, group);
    sut.place(first, group, Tier::kHbm, taken(1)[0]);
  }
  EXPECT_EQ(first.arriving(), 2);
  sut.share(second, row);
  EXPECT_EQ(second.arriving(), 2);
  EXPECT_EQ(second.doubled(), 2);
  EXPECT_TRUE(sut.missing(second, 0));
  EXPECT_EQ(fault(), "");
  sut.settle(second, 0, Tier::kHbm, true);
  EXPECT_EQ(first.arriving(), 1) << "whoever says that it is there";
  EXPECT_EQ(second.arriving(), 1);
  leave_hbm(first, 1);
  EXPECT_EQ(second.arriving(), 0) << "it comes no more";
}

TEST_F(BlockRowsTest, AnOwnerThatEndsTakesNoArrivalAlong) {
  const RowId row = named(first);
  copy_row(first);
  leave_hbm(first, 0);
  sut.place(first, 0, Tier::kHbm, taken(1)[0]);
  sut.share(second, row);
  end(first);
  EXPECT_EQ(first.arriving(), 0);
  EXPECT_EQ(second.arriving(), 1);
  EXPECT_EQ(second.doubled_alone(), 2) << "it has the copies to itself";
  EXPECT_EQ(second.doubled_alone(0), 1);
}

TEST_F(BlockRowsTest, ASecondOwnerEndsWhatTheFirstHadAlone) {
  const RowId row = named(first);
  copy_row(first);
  EXPECT_EQ(first.doubled_alone(), 2);
  const std::uint64_t before = first.changes();
  sut.share(second, row);
  EXPECT_EQ(first.doubled(), 2);
  EXPECT_EQ(first.doubled_alone(), 0);
  EXPECT_EQ(first.doubled_alone(1), 0);
  EXPECT_GT(first.changes(), before) << "what it may drop has changed";
}

TEST_F(BlockRowsTest, AThirdOwnerChangesNothingOfThat) {
  const RowId row = named(first);
  copy_row(first);
  sut.share(second, row);
  BlockTable third{kRowGroups};
  sut.share(third, row);
  EXPECT_EQ(sut.block(third[0]).owners, 3u);
  end(third);
  EXPECT_EQ(first.doubled_alone(), 0);
  EXPECT_EQ(second.doubled_alone(), 0);
  EXPECT_EQ(sut.block(first[0]).owners, 2u);
}

TEST_F(BlockRowsTest, AMoveWithinDramIsOneForAllOwners) {
  const RowId row = named(first);
  copy_row(first);
  sut.share(second, row);
  const SlotId old = sut.slot(first, 1, Tier::kDram), to = taken_in_dram(1)[0];
  const std::uint64_t hbm = second.moves(Tier::kHbm), dram = second.moves(Tier::kDram);
  EXPECT_EQ(sut.relocate(first, 1, Tier::kDram, to), old);
  EXPECT_EQ(sut.slot(second, 1, Tier::kDram), to);
  EXPECT_EQ(tiers.state(Tier::kDram, to), pool::SlotState::kSealed) << "as the old one was";
  EXPECT_GT(second.moves(Tier::kDram), dram);
  EXPECT_EQ(second.moves(Tier::kHbm), hbm);
  tiers.free(Tier::kDram, {old});
}

TEST_F(BlockRowsTest, ARowIsCompleteWhereAllGroupsAre) {
  const RowId row = named(first);
  EXPECT_TRUE(sut.complete(row, Tier::kHbm));
  copy(first, 0);
  EXPECT_FALSE(sut.complete(row, Tier::kDram));
  copy(first, 1, false);
  EXPECT_FALSE(sut.complete(row, Tier::kDram)) << "the last bytes are on their way";
  sut.settle(first, 1, Tier::kDram, true);
  EXPECT_TRUE(sut.complete(row, Tier::kDram));
  leave_hbm(first, 1);
  EXPECT_FALSE(sut.complete(row, Tier::kHbm));
}

TEST_F(BlockRowsTest, TheNumberOfARowThatIsNoMoreIsGivenAgain) {
  const RowId row = named(first);
  end(first);
  tiers.free(Tier::kHbm, sut.release(row)[0]);
  EXPECT_FALSE(sut.live(row));
  EXPECT_FALSE(sut.live(RowId()));
  EXPECT_DEATH((void)sut.row(row), "no such row");
  const RowId next = named(second, kSecondKey);
  EXPECT_EQ(next, row);
  EXPECT_EQ(sut.row(next).key, kSecondKey);
  EXPECT_THAT(sut.row(next).owners, ElementsAre(&second)) << "and nothing of the old one";
  EXPECT_THAT(sut.row(next).blocks, ElementsAre(second[0], second[1]));
}

TEST_F(BlockRowsTest, ARowIsSharedAtItsPlaceByTablesOfItsShape) {
  (void)named(first);
  const RowId next = named(first, kSecondKey);
  EXPECT_EQ(sut.row(next).number, 1u);
  EXPECT_DEATH(sut.share(second, next), "another place");
  BlockTable narrow{1};
  EXPECT_DEATH(sut.share(narrow, next), "other layer groups");
  EXPECT_DEATH((void)sut.vacate(next, Tier::kHbm), "leaves by that");
  EXPECT_DEATH((void)sut.name(second, 0, kSecondKey), "there are not");
}

TEST_F(BlockRowsTest, WhatIsCachedInHbmIsCountedByDevice) {
  Taker there = taker();
  there.device = kOtherDevice;
  compute(first);
  compute(second, there);
  (void)sut.name(first, 0, kFirstKey);
  const RowId far = sut.name(second, 0, kSecondKey);
  copy_row(second);
  end(first);
  end(second);
  EXPECT_EQ(sut.cached(kA, Tier::kHbm, kDevice), kSlot * 2);
  EXPECT_EQ(sut.cached(kA, Tier::kHbm, kOtherDevice), kSlot * 2);
  EXPECT_EQ(sut.cached(kA, Tier::kDram, kDevice), kSlot * 2) << "DRAM is one";
  EXPECT_EQ(sut.cached(kB, Tier::kHbm, kDevice), Bytes(0));
  sut.share(second, far);
  EXPECT_EQ(sut.cached(kA, Tier::kHbm, kOtherDevice), Bytes(0)) << "somebody has it";
  EXPECT_EQ(sut.cached(kA, Tier::kHbm, kDevice), kSlot * 2);
}

}  // namespace
}  // namespace kvd::store
