#include "kvd/store/cache/parked_rows.hpp"

#include <gmock/gmock.h>

#include <map>
#include <optional>
#include <random>
#include <set>

#include "kvd/store/cache/placed_rows.hpp"
#include "kvd/store/index/keys_being_stored.hpp"
#include "tests/unit/kvd/store/cache/cache_fixture.hpp"

namespace kvd::store {
namespace {

constexpr EngineId kOne{1}, kTwo{2}, kThree{3};

class ParkedRowsTest : public CacheTest {
 protected:
  const Key key(std::uint64_t number) { return {space, digest(number)}; }
  RowId stored(std::uint64_t number) {
    const SlotId slot = taken_in_dram(1)[0];
    EXPECT_TRUE(placed.add({space, taker(), kSaved, digest(number), slot}));
    return placed.row(space, digest(number));
  }
  void unpark(RowId row, std::optional<EngineId> engine) {
    std::vector<SlotId> free;
    parked.unpark(row, engine, free);
    EXPECT_TRUE(free.empty()) << "what is whole stays, cached";
  }

  const KeySpace space = space_of(1);
  PlacedRows placed{sut};
  ParkedRows parked{sut};
};

TEST_F(ParkedRowsTest, NobodyFillsTheWayToDiskForOthers) {
  sut.offer_to_disk(SecondTouch{1});
  const KeySpace other = space_of(2);
  const SlotId slot = tiers.take(Tier::kDram, taker(kB), 1).slots.at(0);
  (void)stored(1), (void)stored(2);
  for (int i = 0; i < 100'000; ++i) {
    EXPECT_TRUE(placed.find(space, std::vector{digest(1), digest(2)}));
  }
  EXPECT_TRUE(placed.add({other, taker(kB), kSaved, digest(3), slot}));
  std::vector<Digest> told;
  while (const auto next = sut.next_for_disk()) told.push_back(next->digest);
  EXPECT_THAT(told, ::testing::UnorderedElementsAre(digest(1), digest(2), digest(3)));
}

TEST_F(ParkedRowsTest, DomainsTakeTurnsOnTheWayToDisk) {
  sut.offer_to_disk(SecondTouch{1});
  for (std::uint64_t number = 1; number <= 8; ++number) (void)stored(number);
  const SlotId slot = tiers.take(Tier::kDram, taker(kB), 1).slots.at(0);
  EXPECT_TRUE(placed.add({space_of(2), taker(kB), kSaved, digest(9), slot}));
  std::vector<DomainId> told;
  while (const auto next = sut.next_for_disk()) told.push_back(next->space.domain);
  ASSERT_EQ(told.size(), 9u);
  EXPECT_TRUE(told[0] == kB || told[1] == kB);
}

TEST_F(ParkedRowsTest, ARowMakesWayOnceTheLastEngineHasGivenItUp) {
  const RowId row = stored(1);
  EXPECT_TRUE(parked.park(row, key(1), kOne));
  EXPECT_FALSE(parked.park(row, key(1), kOne));
  EXPECT_TRUE(parked.park(row, key(1), kTwo));
  EXPECT_EQ(placed.forget(row), SlotId());
  EXPECT_EQ(sut.evictable(kA, Tier::kDram), Bytes(0));
  unpark(row, kOne);
  EXPECT_EQ(sut.evictable(kA, Tier::kDram), Bytes(0));
  unpark(row, kOne);
  EXPECT_TRUE(parked.has(row));
  unpark(row, kTwo);
  EXPECT_FALSE(parked.has(row));
  EXPECT_EQ(sut.evictable(kA, Tier::kDram), kSlot);
  EXPECT_EQ(placed.row(space, digest(1)), row);
}

TEST_F(ParkedRowsTest, WhatIsDroppedIsNotFoundWhoeverHadItParked) {
  const RowId row = stored(1);
  EXPECT_TRUE(parked.park(row, key(1), kOne));
  EXPECT_TRUE(parked.park(row, key(1), kTwo));
  unpark(row, std::nullopt);
  const SlotId slot = placed.forget(row);
  EXPECT_FALSE(slot.none());
  EXPECT_FALSE(placed.row(space, digest(1)));
  EXPECT_EQ(placed.forget(row), SlotId());
  EXPECT_FALSE(parked.one_of(kOne));
  tiers.free(Tier::kDram, {slot});
}

// Engines park and give up in any order.
TEST_F(ParkedRowsTest, KnowsWhatEachEngineHasParked) {
  constexpr std::uint64_t kRows = 16;
  const int seed = ::testing::UnitTest::GetInstance()->random_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  std::vector<RowId> rows;
  for (std::uint64_t i = 0; i < kRows; ++i) rows.push_back(stored(i));
  std::map<EngineId, std::set<RowId>> expected;
  for (int step = 0; step < 2000; ++step) {
    const std::uint64_t i = random() % kRows;
    const EngineId engine(static_cast<std::uint32_t>(random() % 3) + 1);
    if (random() % 2 == 0) {
      EXPECT_EQ(parked.park(rows[i], key(i), engine), expected[engine].insert(rows[i]).second);
    } else if (random() % 8 == 0) {
      unpark(rows[i], std::nullopt);
      for (auto& [each, own] : expected) own.erase(rows[i]);
    } else {
      unpark(rows[i], engine);
      expected[engine].erase(rows[i]);
    }
    std::set<RowId> all;
    for (const auto& [each, own] : expected) all.insert(own.begin(), own.end());
    ASSERT_EQ(parked.size(), all.size());
    ASSERT_EQ(fault(), "");
  }
  for (const EngineId engine : {kOne, kTwo, kThree}) {
    std::set<RowId> found;
    while (const RowId row = parked.one_of(engine)) {
      found.insert(row);
      unpark(row, engine);
    }
    EXPECT_EQ(found, expected[engine]);
  }
  EXPECT_EQ(parked.size(), 0u);
}

TEST(KeysBeingStoredTest, ADropIsForTheCopiesUpToTheLatest) {
  KeysBeingStored sut({1, 2, 3, 4});
  const Key key{space_of(1), digest(1)}, other{space_of(2), digest(1)};
  sut.drop(key, Ticket(9));  // none stores it
  for (int i = 0; i < 2; ++i) sut.begin(key);
  sut.begin(other);
  sut.drop(key, Ticket(2));
  sut.begin(key);
  EXPECT_FALSE(sut.end(key, Ticket(1)));
  EXPECT_TRUE(sut.end(key, Ticket(3)));
  EXPECT_FALSE(sut.end(key, Ticket(2)));
  EXPECT_TRUE(sut.end(other, Ticket(1)));
  sut.begin(key);
  EXPECT_TRUE(sut.end(key, Ticket(1))) << "all were over: the drop is forgotten";
}

// Otherwise an engine could choose fingerprints such that each search visits all other entries.
TEST(KeysBeingStoredTest, TheSameDigestUnderManyFingerprintsIsSpread) {
  const DigestTable table({1, 2, 3, 4});
  std::set<DigestTable::Hash> hashes;
  for (std::uint64_t i = 0; i < 4096; ++i) {
    hashes.insert(table.hash(Key{space_of(1, i), digest(1)}));
    hashes.insert(table.hash(Key{space_of(1, i), digest(i)}));
  }
  EXPECT_GT(hashes.size(), 8180u);
}

}  // namespace
}  // namespace kvd::store
