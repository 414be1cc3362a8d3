// What the next daemon is told of rows in DRAM, and what this one takes over.
#include "kvd/store/kept_rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/kvd/store/cache_fixture.hpp"

namespace kvd::store {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class KeptRowsTest : public CacheTest {
 protected:
  KeptRowsTest() { kept.start(); }

  /// What stands written down after the event in hand.
  void follow() {
    for (const SlotId slot : kept.take_ended()) EXPECT_EQ(written.erase(slot), 1u);
    while (const auto row = kept.next()) {
      EXPECT_THAT(row->dram, SizeIs(kGroups));
      for (const SlotId slot : row->dram) {
        EXPECT_TRUE(written.emplace(slot, row->digest).second) << "it was not said to have ended";
      }
      last = *row;
    }
  }

  KeptRows kept{blocks, sut};
  std::map<SlotId, Digest> written;
  std::optional<KeptRow> last;
};

TEST_F(KeptRowsTest, ARowIsToldOnceDramHasAllOfIt) {
  BlockTable table{kGroups};
  compute(table, 2);
  EXPECT_EQ(name(table, prompt), 2u);
  follow();
  EXPECT_THAT(written, IsEmpty()) << "HBM alone has it";
  begin_copy(table);
  follow();
  EXPECT_THAT(written, IsEmpty()) << "its bytes are on their way";
  blocks.settle(table, 0, Tier::kDram, true);
  follow();
  EXPECT_THAT(written, IsEmpty()) << "a layer group is missing";
  blocks.settle(table, 1, Tier::kDram, true);
  follow();
  EXPECT_THAT(written, SizeIs(kGroups));
  EXPECT_EQ(last->parent, std::nullopt);
  copy(table, 1);
  follow();
  EXPECT_THAT(written, SizeIs(2 * kGroups));
  EXPECT_EQ(last->parent, prompt[0]);
  EXPECT_EQ(last->digest, prompt[1]);
  EXPECT_EQ(last->number, 1u);
  EXPECT_NEAR(last->saved.value, kSaved.value, kSaved.value / 1000);
  truncate(table);
  follow();
  EXPECT_THAT(written, SizeIs(2 * kGroups)) << "it is cached";
}

TEST_F(KeptRowsTest, WhatLeavesDramIsToldBeforeItsSlotsAreAnybodys) {
  BlockTable table{kGroups};
  compute(table, 2);
  EXPECT_EQ(name(table, prompt), 2u);
  copy(table, 0);
  copy(table, 1);
  truncate(table);
  follow();
  const std::vector<SlotId> left = sut.evict(kA, Tier::kDram, kRow);
  EXPECT_THAT(kept.take_ended(), ::testing::UnorderedElementsAreArray(left));
  EXPECT_THAT(kept.take_ended(), IsEmpty());
  tiers.free(Tier::kDram, left);
}

TEST_F(KeptRowsTest, ARowThatEndsBeforeItWasWrittenDownIsNotToldAtAll) {
  BlockTable table{kGroups};
  compute(table, 1);
  EXPECT_EQ(name(table, prompt), 1u);
  copy(table, 0);
  truncate(table);
  EXPECT_THAT(kept.take_ended(), IsEmpty());
  tiers.free(Tier::kDram, sut.evict(kA, Tier::kDram, kRow));
  EXPECT_THAT(kept.take_ended(), IsEmpty());
  EXPECT_EQ(kept.next(), std::nullopt);
}

TEST_F(KeptRowsTest, RowsOfBeforeAreFoundAndThoseWithoutParentAreNot) {
  std::vector<KeptRow> rows;
  for (const std::uint32_t number : {0u, 1u, 3u}) {
    KeptRow row{space_of(1), prompt[number], std::nullopt, number, kSaved, kSlot, {}};
    if (number > 0) row.parent = prompt[number - 1];
    row.dram = taken_in_dram(kGroups);
    rows.push_back(row);
  }
  rows.push_back(rows[1]);
  rows.back().dram = taken_in_dram(kGroups);
  const std::vector<KeptRow> rest = kept.adopt(rows, now);
  ASSERT_THAT(rest, SizeIs(2)) << "one has no parent, one is there already";
  for (const KeptRow& row : rest) tiers.free(Tier::kDram, row.dram);
  follow();
  EXPECT_THAT(written, IsEmpty()) << "they are written down as they are";
  EXPECT_EQ(fault(), "");
  BlockTable table{kGroups};
  EXPECT_EQ(sut.share(table, space_of(1), prompt, now), 2u);
  EXPECT_EQ(blocks.slot(table, 2, Tier::kDram), rows[1].dram[0]);
  truncate(table);
  EXPECT_THAT(sut.evict(kA, Tier::kDram, kRow), rows[1].dram) << "tails first, as ever";
  EXPECT_THAT(kept.take_ended(), rows[1].dram);
  tiers.free(Tier::kDram, rows[1].dram);
}

// At every moment what is written down is what DRAM has, whatever happened.
TEST_F(KeptRowsTest, RandomHistoriesNeverLeaveAWrongRecord) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    BlockTable table{kGroups};
    const std::vector<Digest> chain = digests(100 * (1 + random() % 3), 4);
    const std::uint32_t known = sut.share(table, space_of(1), chain, now);
    if (known == 0) {
      compute(table, static_cast<std::uint32_t>(1 + random() % 3));
      (void)name(table, chain);
      for (std::uint32_t block = 0; block < table.blocks() && random() % 4 > 0; ++block) {
        copy(table, block);
      }
    }
    if (random() % 2 == 0) follow();
    truncate(table);
    if (random() % 3 == 0) follow();
    const Tier tier = random() % 2 == 0 ? Tier::kHbm : Tier::kDram;
    if (random() % 2 == 0) {
      const std::vector<SlotId> left =
          sut.evict(kA, tier, kRow * static_cast<std::int64_t>(1 + random() % 4));
      tiers.free(tier, left);
    }
    now += std::chrono::seconds(1);
    follow();
    ASSERT_EQ(written.size(), blocks.slots(Tier::kDram));
    for (const auto& [slot, digest] : written) {
      ASSERT_EQ(tiers.state(Tier::kDram, slot), pool::SlotState::kSealed);
    }
  }
}

}  // namespace
}  // namespace kvd::store
