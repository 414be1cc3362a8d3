// What each policy takes first, what may be written to disk, and the rows they keep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "kvd/store/index/disk_admission.hpp"
#include "kvd/store/index/id_heap.hpp"
#include "kvd/store/index/turnover_eviction.hpp"
#include "tests/unit/kvd/store/index/index_fixture.hpp"

namespace kvd::store {
namespace {

using ::testing::ElementsAre;

TimePoint at(int minutes) { return TimePoint() + std::chrono::minutes(minutes); }

/// A tier of single blocks, each first of its chain: the policy alone decides.
class Tier : public ::testing::Test {
 protected:
  Entries entries;
  std::unique_ptr<TurnoverEviction> sut;
  std::vector<EntryId> ids{EntryId()};  ///< indexed by the number that the tests give them, from 1
  double clock = 0;

  void use(EvictionKind kind) { sut = std::make_unique<TurnoverEviction>(entries, kind); }
  void arrive(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const EntryId id = entries.make(SpaceId(1));
      entries[id].digest = digest(id.value);
      ids.push_back(id);
      enter(ids.size() - 1);
    }
  }
  void enter(std::size_t number) {
    entries[ids[number]].last = ++clock;
    sut->added(ids[number]);
    sut->may_leave(ids[number]);
  }
  /// Touches the block as a lookup does: while it is leased.
  void touch(std::size_t number, std::uint16_t uses = 1) {
    sut->must_stay(ids[number]);
    entries[ids[number]].last = clock += 1e-3;
    entries[ids[number]].uses = uses;
    sut->touched(ids[number]);
    sut->may_leave(ids[number]);
  }
  std::size_t leave() {
    const EntryId id = sut->victim();
    if (!id) return 0;
    EXPECT_EQ(sut->victim(), id) << "it stays the victim";
    sut->must_stay(id);
    sut->removed(id);
    return static_cast<std::size_t>(std::find(ids.begin(), ids.end(), id) - ids.begin());
  }
  std::vector<std::size_t> leave(std::size_t count) {
    std::vector<std::size_t> left;
    while (left.size() < count) left.push_back(leave());
    return left;
  }
};

TEST_F(Tier, WhatWasNotAskedForLongestLeavesFirst) {
  for (const EvictionKind kind : kEvictionKinds) {
    SCOPED_TRACE(name(kind));
    ids.resize(1);
    use(kind);
    arrive(4);
    touch(1);
    touch(3);
    EXPECT_THAT(leave(5), ElementsAre(2, 4, 1, 3, 0));
  }
}

TEST_F(Tier, EachClassCountsAsUsedLaterByTurnovers) {
  use(EvictionKind::kDefault);
  arrive(100);
  touch(1, 2);  // two uses, and half a turnover later: 50 blocks
  const double plain = entries[ids[1]].last;
  EXPECT_NEAR(sut->rank(ids[1]) - plain, 50, 1e-9);
  touch(1, 4);
  EXPECT_NEAR(sut->rank(ids[1]) - entries[ids[1]].last, 100, 1e-9);
  touch(1, 7);
  EXPECT_NEAR(sut->rank(ids[1]) - entries[ids[1]].last, 150, 1e-9);
  use(EvictionKind::kLru);
  EXPECT_NEAR(sut->rank(ids[1]), entries[ids[1]].last, 1e-9) << "LRU has no classes";
}

TEST_F(Tier, WhatIsPopularStaysForAsLongAsItsClassSays) {
  use(EvictionKind::kDefault);
  arrive(100);
  touch(1, 2);
  // For each block that leaves another one comes, so a turnover is 100 of them.
  std::size_t stored = 0;
  for (;;) {
    const std::size_t left = leave();
    if (left == 1) break;
    arrive(1);
    ASSERT_LT(++stored, 1000u);
  }
  EXPECT_GE(stored, 100u + 45u);
  EXPECT_LE(stored, 100u + 55u);
}

// All blocks that are there are popular, so they outrank each new one.
TEST_F(Tier, WhatIsNewStaysForAnEighthOfATurnover) {
  use(EvictionKind::kDefault);
  arrive(160);
  for (std::size_t i = 1; i <= 160; ++i) touch(i, 7);
  clock += 100;  // long ago
  for (std::size_t i = 1; i <= 20; ++i) {
    EXPECT_EQ(leave(), i);
    arrive(1);
  }
  arrive(2);
  EXPECT_EQ(leave(), 161u) << "by now it is what its class says";
}

TEST_F(Tier, ThePopularThatComeBackAreFavouredMore) {
  use(EvictionKind::kDefault);
  arrive(8);
  for (std::size_t i = 1; i <= 8; ++i) touch(i, 2);
  const double before = sut->favour();
  const std::size_t back = leave();
  enter(back);
  EXPECT_NEAR(sut->favour() - before, 4.0 / 64, 1e-9);
  EXPECT_EQ(entries[ids[back]].uses, 4u) << "and are popular at once";
  enter(leave());
  EXPECT_NEAR(sut->favour() - before, 8.0 / 64, 1e-9);
}

TEST_F(Tier, TheOthersThatComeBackTakeFromIt) {
  use(EvictionKind::kDefault);
  arrive(8);
  const double before = sut->favour();
  const std::size_t back = leave();
  enter(back);
  EXPECT_NEAR(before - sut->favour(), 1.0 / 64, 1e-9);
  EXPECT_EQ(entries[ids[back]].uses, 1u);
}

TEST_F(Tier, OfTheRarerGhostsOneThatComesBackSaysMore) {
  use(EvictionKind::kDefault);
  arrive(40);
  for (std::size_t i = 1; i <= 32; ++i) touch(i, 2);
  const std::vector<std::size_t> others = leave(1);
  while (leave() != 0) continue;
  const double before = sut->favour();
  enter(others[0]);
  EXPECT_GT(before - sut->favour(), 2.0 / 64);
}

TEST_F(Tier, TheFavourHasBounds) {
  use(EvictionKind::kDefault);
  arrive(2);
  for (int i = 0; i < 1000; ++i) enter(leave());
  EXPECT_EQ(sut->favour(), 0.25);
  for (int i = 0; i < 10000; ++i) {
    touch(1, 2);
    touch(2, 2);
    enter(leave());
  }
  EXPECT_EQ(sut->favour(), 8);
}

TEST(GhostsTest, RememberTheNewerOfTwoInOnePlaceAndGrow) {
  Ghosts sut;
  sut.remember(5);
  sut.remember(5 + 64);
  EXPECT_FALSE(sut.take(5));
  sut.grow(65);
  sut.remember(5);
  EXPECT_EQ(sut.size(), 2u);
  EXPECT_TRUE(sut.take(5 + 64)) << "growing forgets nothing";
  EXPECT_FALSE(sut.take(5 + 64)) << "once";
  EXPECT_TRUE(sut.take(5));
  EXPECT_EQ(sut.size(), 0u);
}

TEST_F(Tier, EveryPolicyTakesEachBlockOnce) {
  const auto seed = static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const EvictionKind kind : kEvictionKinds) {
    SCOPED_TRACE(name(kind));
    std::mt19937_64 random(seed);
    ids.resize(1);
    use(kind);
    arrive(200);
    for (int i = 0; i < 600; ++i) touch(1 + static_cast<std::size_t>(random() % 200));
    EXPECT_EQ(sut->size(), 200u);
    std::set<std::size_t> left;
    while (const std::size_t number = leave()) EXPECT_TRUE(left.insert(number).second);
    EXPECT_EQ(left.size(), 200u);
    EXPECT_EQ(sut->size(), 0u);
  }
}

TEST(EvictionKindTest, NamesGoBothWays) {
  for (const EvictionKind kind : kEvictionKinds) EXPECT_EQ(*eviction_kind(name(kind)), kind);
  const auto unknown = eviction_kind("mru");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().message, "no eviction policy is called mru; there are default, lru");
}

TEST(IdHeapTest, RandomHistoriesKeepTheLeastFirst) {
  const auto seed = static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  IdHeap sut;
  std::set<std::pair<double, EntryId>> expected;
  for (int round = 0; round < 20000; ++round) {
    const EntryId id(1 + static_cast<std::uint32_t>(random() % 100));
    const auto known = std::find_if(expected.begin(), expected.end(),
                                    [&](const auto& node) { return node.second == id; });
    ASSERT_EQ(sut.contains(id), known != expected.end());
    if (known == expected.end()) {
      const auto number = static_cast<double>(random() % 20);
      sut.insert(id, number);
      expected.emplace(number, id);
    } else {
      sut.erase(id);
      expected.erase(known);
    }
    ASSERT_EQ(sut.size(), expected.size());
    ASSERT_EQ(sut.least(), expected.empty() ? EntryId() : expected.begin()->second);
  }
}

TEST(DiskAdmissionTest, ABlockGoesToDiskAtItsSecondTouch) {
  Entry once, twice;
  once.touches = 1, twice.touches = 2;
  EXPECT_FALSE(SecondTouch{}.admits(once, false));
  EXPECT_TRUE(SecondTouch{}.admits(twice, false));
  EXPECT_TRUE(SecondTouch{}.admits(once, true)) << "its user is expected back";
  EXPECT_TRUE(SecondTouch{.least = 1}.admits(once, false));
}

TEST(DiskAdmissionTest, ADayHasItsBudgetAndAnHourMore) {
  constexpr Bytes kBlock{1'000'000};
  WriteBudget sut(kBlock * 24 * 60, at(0));
  std::int64_t written = 0;
  for (int minute = 0; minute < 24 * 60; ++minute) {
    while (sut.take(kBlock, at(minute))) ++written;
  }
  EXPECT_GE(written, 25 * 60 - 2);
  EXPECT_LE(written, 25 * 60);
}

TEST(DiskAdmissionTest, WhatIsNotWrittenKeepsForAnHour) {
  constexpr Bytes kBlock{1'000'000};
  WriteBudget sut(kBlock * 24, at(0));
  EXPECT_FALSE(sut.take(kBlock * 2, at(10'000))) << "more than an hour's";
  EXPECT_TRUE(sut.take(kBlock, at(10'000)));
  EXPECT_FALSE(sut.take(kBlock, at(9'000))) << "time does not go back";
  EXPECT_TRUE(sut.take(kBlock, at(10'061)));
  WriteBudget none(Bytes(0), at(0));
  EXPECT_FALSE(none.take(Bytes(1), at(10'000)));
}

}  // namespace
}  // namespace kvd::store
