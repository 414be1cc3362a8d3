// Blocks and block tables: where bytes are, whose they are, and that the sums say the same.
#include "kvd/store/blocks/blocks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kvd/store/memory/staging.hpp"
#include "tests/unit/kvd/store/store_fixture.hpp"

namespace kvd::store {
namespace {

using pool::SlotState;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint32_t kGroups = 2;

class BlocksTest : public StoreTest {
 protected:
  ~BlocksTest() override {
    EXPECT_EQ(tiers.validate(), "");
    EXPECT_EQ(sut.validate(), "");
  }
  /// New blocks with slots in HBM.
  void grow(BlockTable& of, std::uint32_t count) {
    std::uint32_t i = of.size();
    sut.extend(of, taker(), count);
    for (const SlotId slot : taken(count)) sut.place(of, i++, Tier::kHbm, slot);
  }
  void end(BlockTable& of) {
    const auto slots = sut.truncate(of, 0);
    tiers.free(Tier::kHbm, slots[0]);
    tiers.free(Tier::kDram, slots[1]);
  }

  Blocks sut{tiers};
  BlockTable table{kGroups};
};

TEST_F(BlocksTest, ATableKnowsItsSlots) {
  grow(table, 4);
  EXPECT_EQ(table.blocks(), 2u);
  EXPECT_EQ(table.in(Tier::kHbm), 4);
  EXPECT_TRUE(table.all_in(Tier::kHbm));
  sut.place(table, 1, Tier::kDram, taken_in_dram(1)[0]);
  EXPECT_EQ(table.in(Tier::kDram), 1);
  EXPECT_EQ(table.doubled(), 1);
  const SlotId left = sut.vacate(table, 1, Tier::kHbm);
  EXPECT_FALSE(left.none());
  EXPECT_TRUE(sut.vacate(table, 1, Tier::kHbm).none()) << "it had none any more";
  EXPECT_EQ(table.doubled(), 0);
  EXPECT_FALSE(table.all_in(Tier::kHbm));
  EXPECT_EQ(sut.validate(table), "");
  tiers.free(Tier::kHbm, {left});
  end(table);
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(sut.slots(Tier::kHbm), 0u);
}

TEST_F(BlocksTest, ArrivesSettlesAndIsSynced) {
  sut.extend(table, taker(), kGroups);
  const auto hbm = taken(kGroups), dram = taken_in_dram(kGroups);
  for (std::uint32_t i = 0; i < kGroups; ++i) sut.place(table, i, Tier::kDram, dram[i]);
  EXPECT_TRUE(sut.missing(table, 0));
  EXPECT_FALSE(sut.arriving(table, 0));
  for (std::uint32_t i = 0; i < kGroups; ++i) sut.place(table, i, Tier::kHbm, hbm[i]);
  EXPECT_TRUE(sut.arriving(table, 0));
  EXPECT_TRUE(sut.missing(table, 0)) << "its bytes are not there yet";
  sut.settle(table, 0, Tier::kHbm, true);
  EXPECT_FALSE(sut.missing(table, 0));
  EXPECT_FALSE(sut.synced(table, 0)) << "DRAM does not have them yet";
  sut.settle(table, 0, Tier::kDram, true);
  EXPECT_TRUE(sut.synced(table, 0));
  EXPECT_TRUE(sut.block(table[0]).sealed);
  sut.settle(table, 1, Tier::kHbm, false);
  EXPECT_EQ(tiers.pool(Tier::kHbm).state(hbm[1]), SlotState::kOpen);
  EXPECT_FALSE(sut.block(table[1]).sealed);
  sut.settle(table, 1, Tier::kHbm, false);
  sut.settle(table, 1, Tier::kHbm, true);
  EXPECT_EQ(tiers.pool(Tier::kHbm).state(hbm[1]), SlotState::kSealed);
  end(table);
}

TEST_F(BlocksTest, TruncateGivesBackTheSlotsOfBothTiers) {
  grow(table, 6);
  const SlotId copy = taken_in_dram(1)[0];
  sut.place(table, 5, Tier::kDram, copy);
  const std::vector<SlotId> last = {sut.slot(table, 4, Tier::kHbm), sut.slot(table, 5, Tier::kHbm)};
  auto slots = sut.truncate(table, 2);
  EXPECT_EQ(slots[0], last);
  EXPECT_THAT(slots[1], ElementsAre(copy));
  EXPECT_EQ(table.blocks(), 2u);
  EXPECT_EQ(table.doubled(), 0);
  tiers.free(Tier::kHbm, slots[0]);
  tiers.free(Tier::kDram, slots[1]);
  EXPECT_THAT(sut.truncate(table, 9)[0], IsEmpty()) << "there are not so many";
  end(table);
}

TEST_F(BlocksTest, UsageIsKeptByDomain) {
  BlockTable other{1};
  grow(table, 4);
  sut.extend(other, taker(kB), 1);
  sut.place(other, 0, Tier::kHbm, taken(1, taker(kB))[0]);
  EXPECT_EQ(sut.usage(kA).owned[0], kSlot * 4);
  EXPECT_EQ(sut.usage(kA).blocks, 4);
  EXPECT_EQ(sut.usage(kB).owned[0], kSlot);
  EXPECT_EQ(sut.slots(Tier::kHbm), 5u);
  end(table);
  EXPECT_EQ(sut.usage(kA).owned[0], Bytes(0));
  EXPECT_EQ(sut.usage(kB).blocks, 1);
  end(other);
}

TEST_F(BlocksTest, VisitsTheSlotsOfATier) {
  grow(table, 2);
  std::vector<SlotId> seen;
  sut.each_slot(table, Tier::kHbm, [&](SlotId slot) { seen.push_back(slot); });
  EXPECT_THAT(seen, ElementsAre(sut.slot(table, 0, Tier::kHbm), sut.slot(table, 1, Tier::kHbm)));
  seen.clear();
  sut.each_slot(table, Tier::kDram, [&](SlotId slot) { seen.push_back(slot); });
  EXPECT_THAT(seen, IsEmpty());
  end(table);
}

TEST_F(BlocksTest, ValidateSeesABlockInNoTier) {
  sut.extend(table, taker(), kGroups);
  EXPECT_NE(sut.validate(table), "");
  end(table);
}

TEST_F(BlocksTest, ValidateSeesATableThatNamesBlocksOfAnother) {
  grow(table, 2);
  BlockTable copied = table;
  end(table);
  EXPECT_NE(sut.validate(copied), "");
}

/// Tables that grow, shrink, move between the tiers and end: sums and states as a walk finds them.
TEST_F(BlocksTest, RandomHistoriesKeepTheSums) {
  const auto seed = static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  std::mt19937_64 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::vector<BlockTable> tables(3, BlockTable(kGroups));
  for (int round = 0; round < 2000; ++round) {
    BlockTable& one = tables[random() % tables.size()];
    const auto i = one.empty() ? 0 : static_cast<std::uint32_t>(random() % one.size());
    switch (random() % 4) {
      case 0:
        if (one.size() < 8) grow(one, kGroups);
        break;
      case 1: {
        const auto slots = sut.truncate(one, one.blocks() / 2);
        tiers.free(Tier::kHbm, slots[0]);
        tiers.free(Tier::kDram, slots[1]);
        break;
      }
      case 2:
        if (one.empty() || sut.has(one, i, Tier::kDram)) break;
        sut.place(one, i, Tier::kDram, taken_in_dram(1)[0]);
        sut.settle(one, i, Tier::kDram, true);
        break;
      default:
        if (one.empty() || !sut.has(one, i, Tier::kDram)) break;
        if (!sut.has(one, i, Tier::kHbm)) {
          sut.place(one, i, Tier::kHbm, taken(1)[0]);
        } else {
          tiers.free(Tier::kHbm, {sut.vacate(one, i, Tier::kHbm)});
        }
    }
    ASSERT_EQ(sut.validate(), "");
    for (const BlockTable& each : tables) ASSERT_EQ(sut.validate(each), "");
  }
  for (BlockTable& each : tables) end(each);
}

TEST(StagingTest, HoldsOneSlotABlockAndGivesThemAllBack) {
  Staging sut;
  EXPECT_TRUE(sut.empty());
  sut.put(2, SlotId(SlabIndex(0), 7));
  sut.put(0, SlotId(SlabIndex(1), 3));
  EXPECT_EQ(sut.count(), 2);
  EXPECT_TRUE(sut.slot(1).none());
  EXPECT_TRUE(sut.slot(9).none()) << "beyond the last";
  EXPECT_EQ(sut.slot(2), SlotId(SlabIndex(0), 7));
  EXPECT_THAT(sut.take(), ElementsAre(SlotId(SlabIndex(1), 3), SlotId(SlabIndex(0), 7)));
  EXPECT_TRUE(sut.empty());
  EXPECT_THAT(sut.take(), IsEmpty());
}

}  // namespace
}  // namespace kvd::store
