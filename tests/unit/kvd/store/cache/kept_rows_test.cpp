// What the next daemon is told of rows in DRAM, and what this one takes over.
#include "kvd/store/cache/kept_rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/unit/kvd/store/cache/cache_fixture.hpp"

namespace kvd::store {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class KeptRowsTest : public CacheTest {
 protected:
  explicit KeptRowsTest(bool hbm = false) { kept.start(hbm); }

  void forget() {
    const SlotsByTier ended = kept.take_ended(now);
    for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
      for (const SlotId slot : ended[static_cast<std::size_t>(tier)]) {
        EXPECT_EQ(written.erase({tier, slot}), 1u);
      }
    }
  }
  /// What stands written down after the event in hand, or is being written.
  void begin() {
    forget();
    while (const auto row = kept.next(now)) {
      EXPECT_THAT(row->slots, SizeIs(kGroups));
      for (const SlotId slot : row->slots) {
        const auto [known, is_new] = written.emplace(std::pair(row->tier, slot), row->digest);
        EXPECT_TRUE(is_new) << "it was not said to have ended";
      }
      last = *row;
    }
  }
  void follow() {
    begin();
    (void)kept.all_read();
  }
  [[nodiscard]] std::size_t written_in(Tier tier) const {
    return static_cast<std::size_t>(std::count_if(
        written.begin(), written.end(), [&](const auto& e) { return e.first.first == tier; }));
  }
  /// Nothing is written down that is not what the slot holds.
  void check_written() {
    for (const auto& [where, digest] : written) {
      ASSERT_EQ(tiers.state(where.first, where.second), pool::SlotState::kSealed);
    }
  }

  /// A row of a chain, as an earlier daemon has left it.
  KeptRow row_of(std::uint32_t number, Tier tier, std::uint32_t chain = 1) {
    const std::vector<Digest> all = digests(chain, 8);
    KeptRow row{space_of(1), all[number], std::nullopt, number, kSaved, kSlot, tier, {}};
    if (number > 0) row.parent = all[number - 1];
    row.slots = tier == Tier::kHbm ? taken(kGroups) : taken_in_dram(kGroups);
    return row;
  }
  void random_history(bool hbm);

  KeptRows kept{blocks, sut};
  TimePoint now{};
  std::map<std::pair<Tier, SlotId>, Digest> written;
  std::optional<KeptRow> last;
};

void KeptRowsTest::random_history(bool hbm) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto maybe_follow = [&] {
    if (random() % 3 == 0) begin();  // the row is still being read when the next thing happens
    if (random() % 3 == 0) follow();
  };
  for (int round = 0; round < 2000; ++round) {
    BlockTable table{kGroups};
    const std::vector<Digest> chain = digests(100 * (1 + random() % 3), 4);
    const std::uint32_t known = sut.share(table, space_of(1), chain);
    if (known == 0) {
      compute(table, static_cast<std::uint32_t>(1 + random() % 3));
      (void)name(table, chain);
      maybe_follow();
      for (std::uint32_t block = 0; block < table.blocks() && random() % 4 > 0; ++block) {
        copy(table, block);
      }
    }
    maybe_follow();
    truncate(table);
    maybe_follow();
    const Tier tier = random() % 2 == 0 ? Tier::kHbm : Tier::kDram;
    if (random() % 2 == 0) {
      const std::vector<SlotId> left =
          sut.evict(kA, tier, kRow * static_cast<std::int64_t>(1 + random() % 4));
      tiers.free(tier, left);
    }
    now += std::chrono::seconds(1);
    follow();
    ASSERT_EQ(written_in(Tier::kDram), blocks.slots(Tier::kDram));
    const auto all = static_cast<std::size_t>(blocks.usage(kA).blocks);
    ASSERT_EQ(written_in(Tier::kHbm), hbm ? all - blocks.slots(Tier::kDram) : 0);
    check_written();
    ASSERT_EQ(fault(), "");
  }
}

/// The same holds for rows that only HBM has.
class KeptHbmRowsTest : public KeptRowsTest {
 protected:
  KeptHbmRowsTest() : KeptRowsTest(true) {}
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
  EXPECT_THAT(kept.take_ended(now)[1], ::testing::UnorderedElementsAreArray(left));
  EXPECT_THAT(kept.take_ended(now)[1], IsEmpty());
  tiers.free(Tier::kDram, left);
}

TEST_F(KeptRowsTest, ARowThatEndsBeforeItWasWrittenDownIsNotToldAtAll) {
  BlockTable table{kGroups};
  compute(table, 1);
  EXPECT_EQ(name(table, prompt), 1u);
  copy(table, 0);
  truncate(table);
  EXPECT_THAT(kept.take_ended(now)[1], IsEmpty());
  tiers.free(Tier::kDram, sut.evict(kA, Tier::kDram, kRow));
  EXPECT_THAT(kept.take_ended(now)[1], IsEmpty());
  EXPECT_EQ(kept.next(now), std::nullopt);
}

TEST_F(KeptRowsTest, RowsOfBeforeAreFoundAndThoseWithoutParentAreNot) {
  std::vector<KeptRow> rows;
  for (const std::uint32_t number : {0u, 1u, 3u}) {
    rows.push_back(row_of(number, Tier::kDram));
  }
  rows.push_back(row_of(1, Tier::kDram));
  const std::vector<KeptRow> rest = kept.adopt(rows, now);
  ASSERT_THAT(rest, SizeIs(2)) << "one has no parent, one is there already";
  for (const KeptRow& row : rest) tiers.free(Tier::kDram, row.slots);
  follow();
  EXPECT_THAT(written, IsEmpty()) << "they are written down as they are";
  EXPECT_EQ(fault(), "");
  BlockTable table{kGroups};
  EXPECT_EQ(sut.share(table, space_of(1), prompt), 2u);
  EXPECT_EQ(blocks.slot(table, 2, Tier::kDram), rows[1].slots[0]);
  truncate(table);
  EXPECT_THAT(sut.evict(kA, Tier::kDram, kRow), rows[1].slots) << "tails first, as ever";
  EXPECT_THAT(kept.take_ended(now)[1], rows[1].slots);
  tiers.free(Tier::kDram, rows[1].slots);
}

TEST_F(KeptHbmRowsTest, ARowIsToldInHbmUntilDramHasIt) {
  BlockTable table{kGroups};
  compute(table, 2);
  EXPECT_EQ(name(table, prompt), 2u);
  follow();
  EXPECT_EQ(written_in(Tier::kHbm), 2 * kGroups);
  EXPECT_EQ(last->parent, prompt[0]);
  begin_copy(table);
  follow();
  EXPECT_EQ(written_in(Tier::kHbm), 2 * kGroups) << "its bytes are on their way";
  for (std::uint32_t i = 0; i < kGroups; ++i) blocks.settle(table, i, Tier::kDram, true);
  follow();
  EXPECT_EQ(written_in(Tier::kHbm), kGroups) << "a second record says nothing";
  EXPECT_EQ(written_in(Tier::kDram), kGroups);
  truncate(table);
  tiers.free(Tier::kDram, sut.evict(kA, Tier::kDram, kRow));
  follow();
  EXPECT_EQ(written_in(Tier::kHbm), 2 * kGroups) << "DRAM does not have it any more";
  check_written();
}

// The row comes to DRAM as eager copies bring it there: its bytes need not be read twice.
TEST_F(KeptHbmRowsTest, WhatHasJustComeToHbmIsNotToldBeforeDramCanHaveIt) {
  BlockTable table{kGroups};
  compute(table, 2);
  EXPECT_EQ(name(table, prompt), 2u);
  forget();
  EXPECT_EQ(kept.next(now - std::chrono::seconds(1)), std::nullopt);
  copy(table, 0);
  now += std::chrono::seconds(1);
  forget();
  std::vector<Tier> tiers_told;
  while (const auto row = kept.next(now - std::chrono::seconds(1))) tiers_told.push_back(row->tier);
  EXPECT_THAT(tiers_told, ::testing::ElementsAre(Tier::kDram, Tier::kHbm));
  (void)kept.all_read();
  truncate(table);
}

TEST_F(KeptHbmRowsTest, WhatLeavesHbmIsToldBeforeItsSlotsAreAnybodys) {
  BlockTable table{kGroups};
  compute(table, 2);
  EXPECT_EQ(name(table, prompt), 2u);
  truncate(table);
  follow();
  const std::vector<SlotId> left = sut.evict(kA, Tier::kHbm, kRow);
  EXPECT_THAT(kept.take_ended(now)[0], ::testing::UnorderedElementsAreArray(left));
  EXPECT_THAT(kept.take_ended(now)[0], IsEmpty());
  tiers.free(Tier::kHbm, left);
}

TEST_F(KeptHbmRowsTest, WhatIsReadInHbmDoesNotMakeWayAndIsNotCountedAsIfItDid) {
  BlockTable table{kGroups};
  compute(table, 2);
  EXPECT_EQ(name(table, prompt), 2u);
  truncate(table);
  begin();
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), Bytes(0));
  EXPECT_THAT(sut.evict(kA, Tier::kHbm, kRow), IsEmpty());
  EXPECT_EQ(fault(), "");
  EXPECT_TRUE(kept.all_read());
  EXPECT_FALSE(kept.all_read()) << "once";
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), 2 * kRow);
}

TEST_F(KeptHbmRowsTest, AClearedCacheKeepsNothingThatIsBeingRead) {
  BlockTable table{kGroups};
  compute(table, 2);
  EXPECT_EQ(name(table, prompt), 2u);
  truncate(table);
  begin();
  sut.clear();
  EXPECT_EQ(sut.cached(Tier::kHbm), Bytes(0));
  EXPECT_EQ(fault(), "");
  begin();
  EXPECT_THAT(written, IsEmpty());
  EXPECT_FALSE(kept.all_read());
  EXPECT_EQ(fault(), "");
}

TEST_F(KeptHbmRowsTest, AChainOverBothTiersIsFoundAndWithoutItsDramNot) {
  const std::vector<KeptRow> rows = {row_of(0, Tier::kDram), row_of(1, Tier::kHbm),
                                     row_of(2, Tier::kDram), row_of(3, Tier::kHbm)};
  EXPECT_THAT(kept.adopt(rows, now), IsEmpty());
  follow();
  EXPECT_THAT(written, IsEmpty()) << "they are written down as they are";
  EXPECT_EQ(fault(), "");
  EXPECT_EQ(sut.cached(Tier::kHbm), 2 * kRow);
  BlockTable table{kGroups};
  EXPECT_EQ(sut.share(table, space_of(1), prompt), 4u);
  EXPECT_EQ(blocks.slot(table, 2, Tier::kHbm), rows[1].slots[0]);
  EXPECT_EQ(blocks.slot(table, 4, Tier::kDram), rows[2].slots[0]);
  truncate(table);
  EXPECT_TRUE(sut.next_alone()) << "eager copies bring it to DRAM";

  std::vector<KeptRow> headless = {row_of(1, Tier::kHbm, 900), row_of(2, Tier::kDram, 900)};
  EXPECT_THAT(kept.adopt(headless, now), SizeIs(2));
  for (const KeptRow& row : headless) tiers.free(row.tier, row.slots);
}

// At every moment the records agree with what the tiers have, whatever happened.
TEST_F(KeptRowsTest, RandomHistoriesNeverLeaveAWrongRecord) { random_history(false); }
TEST_F(KeptHbmRowsTest, RandomHistoriesNeverLeaveAWrongRecord) { random_history(true); }

}  // namespace
}  // namespace kvd::store
