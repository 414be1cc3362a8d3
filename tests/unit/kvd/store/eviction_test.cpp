// What each policy takes first, what may be written to disk, and the rows they keep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "kvd/store/disk_admission.hpp"
#include "kvd/store/eviction_catalogue.hpp"
#include "kvd/store/heat.hpp"
#include "kvd/store/id_heap.hpp"
#include "kvd/store/id_queue.hpp"
#include "tests/unit/kvd/store/index_fixture.hpp"

namespace kvd::store {
namespace {

using ::testing::ElementsAre;

TimePoint at(int minutes) { return TimePoint() + std::chrono::minutes(minutes); }

/// A tier of single blocks, each first of its chain: the policy alone decides.
class Tier : public ::testing::Test {
 protected:
  Entries entries;
  std::unique_ptr<Eviction> sut;
  std::vector<EntryId> ids{EntryId()};  ///< by the number that the tests give them, from 1

  void use(EvictionKind kind) { sut = make_eviction(kind, entries); }
  void arrive(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const EntryId id = entries.make(SpaceId(1));
      entries[id].digest = digest(id.value);
      ids.push_back(id);
      enter(ids.size() - 1);
    }
  }
  void enter(std::size_t number) {
    sut->added(ids[number]);
    sut->may_leave(ids[number]);
  }
  /// As a lookup does: with a lease.
  void touch(std::size_t number) {
    entries[ids[number]].leases = 1;
    sut->must_stay(ids[number]);
    sut->touched(ids[number]);
    entries[ids[number]].leases = 0;
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

TEST_F(Tier, LruTakesWhatWasNotAskedForLongest) {
  use(EvictionKind::kLru);
  arrive(4);
  touch(1);
  touch(3);
  EXPECT_THAT(leave(5), ElementsAre(2, 4, 1, 3, 0));
}

TEST_F(Tier, SavedTimeTakesWhatSavesLeast) {
  use(EvictionKind::kSavedTime);
  const Heat heat(std::chrono::minutes(10));
  arrive(4);
  for (std::size_t i = 1; i <= 4; ++i) {
    sut->must_stay(ids[i]);
    entries[ids[i]].heat = heat.first(at(0));
    entries[ids[i]].worth = 3;
  }
  entries[ids[2]].worth = 1;                                             // a quarter a byte
  entries[ids[3]].heat = heat.again(entries[ids[3]].heat, at(0));        // twice as often
  entries[ids[4]].heat = heat.first(at(25)), entries[ids[4]].worth = 2;  // 2.5 half-lives later
  for (std::size_t i = 1; i <= 4; ++i) sut->may_leave(ids[i]);
  EXPECT_THAT(leave(4), ElementsAre(2, 1, 3, 4));
}

TEST_F(Tier, SavedTimeFollowsWhatASpaceIsFoundToCost) {
  use(EvictionKind::kSavedTime);
  arrive(4);
  for (const std::size_t i : {2U, 4U}) {
    sut->must_stay(ids[i]);
    entries[ids[i]].space = SpaceId(2);
    entries[ids[i]].worth = 3;
    sut->may_leave(ids[i]);
  }
  EXPECT_EQ(sut->victim(), ids[1]);
  sut->costs(SpaceId(2), -2);
  EXPECT_EQ(sut->victim(), ids[1]);
  sut->costs(SpaceId(2), -4);
  EXPECT_THAT(leave(1), ElementsAre(2));
  sut->costs(SpaceId(2), -3);
  EXPECT_THAT(leave(4), ElementsAre(1, 3, 4, 0)) << "of equals the older one";
}

TEST_F(Tier, SievePassesWhatWasTouchedAndKeepsItsOrder) {
  use(EvictionKind::kSieve);
  arrive(5);
  touch(1);
  touch(3);
  EXPECT_THAT(leave(2), ElementsAre(2, 4));
  arrive(1);
  EXPECT_THAT(leave(2), ElementsAre(5, 6)) << "the hand goes on where it was";
  EXPECT_THAT(leave(3), ElementsAre(1, 3, 0)) << "and comes round";
}

TEST_F(Tier, SieveTakesAParentRightAfterItsLastChild) {
  use(EvictionKind::kSieve);
  arrive(4);
  sut->must_stay(ids[1]);  // a child arrives
  EXPECT_THAT(leave(1), ElementsAre(2));
  sut->may_leave(ids[1]);  // which was 2
  EXPECT_THAT(leave(3), ElementsAre(1, 3, 4));
}

TEST_F(Tier, QueuesPassWhatIsLeasedAndKeepItsPlace) {
  for (const EvictionKind kind : {EvictionKind::kSieve, EvictionKind::kS3Fifo}) {
    SCOPED_TRACE(name(kind));
    ids.resize(1);
    use(kind);
    arrive(2);
    for (const std::size_t i : {1u, 2u}) {
      entries[ids[i]].leases = 1;
      sut->must_stay(ids[i]);
    }
    EXPECT_EQ(leave(), 0u) << "all are leased";
    arrive(1);
    EXPECT_EQ(leave(), 3u);
    entries[ids[2]].leases = 0;
    sut->may_leave(ids[2]);
    entries[ids[1]].leases = 0;
    EXPECT_EQ(leave(), 2u) << "a child came while the other was leased";
    sut->may_leave(ids[1]);
    EXPECT_THAT(leave(2), ElementsAre(1, 0));
  }
}

TEST_F(Tier, S3FifoTakesFirstWhatWasAskedForOnce) {
  use(EvictionKind::kS3Fifo);
  arrive(6);
  for (int i = 0; i < 2; ++i) {
    touch(2);
    touch(5);
  }
  touch(4);
  EXPECT_THAT(leave(4), ElementsAre(1, 3, 4, 6));
  EXPECT_THAT(leave(3), ElementsAre(2, 5, 0));
}

TEST_F(Tier, S3FifoKeepsWhatReturnsSoonAfterItLeft) {
  use(EvictionKind::kS3Fifo);
  arrive(3);
  EXPECT_THAT(leave(1), ElementsAre(1));
  enter(1);
  EXPECT_THAT(leave(3), ElementsAre(2, 3, 1)) << "in the main queue now";
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
  EXPECT_EQ(unknown.error().message,
            "no eviction policy is called mru; there are saved_time, lru, s3fifo, sieve");
}

TEST(HeatTest, CountsWithHalfLives) {
  const Heat sut(std::chrono::minutes(10));
  double heat = sut.first(at(0));
  for (int i = 1; i < 8; ++i) heat = sut.again(heat, at(0));
  EXPECT_NEAR(sut.frequency(heat, at(0)), 8, 1e-5);
  EXPECT_NEAR(sut.frequency(heat, at(30)), 1, 1e-5);
  heat = sut.again(heat, at(30));
  EXPECT_NEAR(sut.frequency(heat, at(30)), 2, 1e-5);
  EXPECT_NEAR(sut.frequency(sut.again(heat, at(100'000)), at(100'000)), 1, 1e-5) << "long ago";
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

TEST(IdQueueTest, KeepsTheOrder) {
  IdQueue sut;
  const auto row = [&] {
    std::vector<std::uint32_t> ids;
    for (EntryId id = sut.oldest(); id; id = sut.newer(id)) ids.push_back(id.value);
    return ids;
  };
  for (const std::uint32_t id : {5u, 2u, 9u}) sut.insert(EntryId(id));
  sut.insert(EntryId(7), EntryId(2));
  sut.insert(EntryId(1), EntryId(5));
  EXPECT_THAT(row(), ElementsAre(1, 5, 7, 2, 9));
  for (const std::uint32_t id : {1u, 9u, 7u}) sut.erase(EntryId(id));
  EXPECT_THAT(row(), ElementsAre(5, 2));
  EXPECT_EQ(sut.size(), 2u);
  EXPECT_FALSE(sut.contains(EntryId(7)));
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
