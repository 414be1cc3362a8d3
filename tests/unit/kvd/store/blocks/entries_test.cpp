// The entries of an index by id: which are in use, which may leave a tier, and which ids come
// again.
#include "kvd/store/blocks/entries.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace kvd::store {
namespace {

using ::testing::ElementsAre;

constexpr SpaceId kSpace{1}, kOtherSpace{2};

TEST(EntryTest, MayLeaveATierThatHasItWhenNobodyCountsOnIt) {
  Entry sut;
  EXPECT_FALSE(sut.anywhere());
  EXPECT_FALSE(sut.may_leave(CacheTier::kHbm)) << "it is not there";
  sut.at[index(CacheTier::kHbm)] = Place(4);
  EXPECT_TRUE(sut.anywhere());
  EXPECT_TRUE(sut.may_leave(CacheTier::kHbm));
  EXPECT_FALSE(sut.may_leave(CacheTier::kDram));
  sut.leases = 1;
  EXPECT_FALSE(sut.may_leave(CacheTier::kHbm)) << "somebody reads it";
}

TEST(EntryTest, AHeadStaysAsLongAsTheTierHasABlockAfterIt) {
  Entry sut;
  for (const CacheTier tier : {CacheTier::kHbm, CacheTier::kDram}) sut.at[index(tier)] = Place(1);
  sut.children_in[index(CacheTier::kDram)] = 1;
  EXPECT_TRUE(sut.may_leave(CacheTier::kHbm)) << "what comes after it is in DRAM alone";
  EXPECT_FALSE(sut.may_leave(CacheTier::kDram));
}

TEST(EntriesTest, IdsStartAtOneAndNoneIsNone) {
  Entries sut;
  EXPECT_FALSE(sut.live(EntryId()));
  EXPECT_FALSE(sut.live(EntryId(1)));
  const EntryId first = sut.make(kSpace);
  EXPECT_EQ(first, EntryId(1));
  EXPECT_TRUE(sut.live(first));
  EXPECT_EQ(sut[first].space, kSpace);
  EXPECT_EQ(sut.size(), 1u);
}

TEST(EntriesTest, TheLastIdThatWasGivenBackComesFirst) {
  Entries sut;
  std::vector<EntryId> ids(4);
  for (EntryId& id : ids) id = sut.make(kSpace);
  sut.erase(ids[0]);
  sut.erase(ids[2]);
  EXPECT_EQ(sut.size(), 2u);
  EXPECT_EQ(sut.make(kOtherSpace), ids[2]);
  EXPECT_EQ(sut.make(kOtherSpace), ids[0]);
  EXPECT_EQ(sut.make(kOtherSpace), EntryId(5)) << "then a new one";
}

TEST(EntriesTest, ANewEntryHasNothingOfTheOldOne) {
  Entries sut;
  const EntryId id = sut.make(kSpace);
  Entry& entry = sut[id];
  entry.touches = 9;
  entry.leases = 2;
  entry.parent = EntryId(7);
  entry.at[0] = Place(3);
  sut.erase(id);
  EXPECT_FALSE(sut.live(id));
  ASSERT_EQ(sut.make(kOtherSpace), id);
  EXPECT_EQ(sut[id].touches, 0u);
  EXPECT_EQ(sut[id].leases, 0u);
  EXPECT_FALSE(sut[id].parent);
  EXPECT_FALSE(sut[id].anywhere());
}

TEST(EntriesTest, AnIdThatIsNotInUseIsABug) {
  Entries sut;
  const EntryId id = sut.make(kSpace);
  sut.erase(id);
  EXPECT_DEATH((void)sut[id], "no such entry");
  EXPECT_DEATH(sut.erase(id), "no such entry");
  EXPECT_DEATH((void)sut[EntryId(99)], "no such entry");
}

TEST(EntriesTest, AreVisitedInTheOrderOfTheirIds) {
  Entries sut;
  for (int i = 0; i < 5; ++i) (void)sut.make(kSpace);
  sut.erase(EntryId(2));
  std::vector<std::uint32_t> seen;
  sut.each([&](EntryId id, const Entry&) { seen.push_back(id.value); });
  EXPECT_THAT(seen, ElementsAre(1, 3, 4, 5));
}

TEST(EntriesTest, StayWhereTheyAreWhileOthersCome) {
  Entries sut;
  const EntryId first = sut.make(kSpace);
  const Entry* const place = &sut[first];
  const std::size_t before = sut.allocated_bytes();
  for (int i = 0; i < 10'000; ++i) (void)sut.make(kSpace);
  EXPECT_EQ(&sut[first], place);
  EXPECT_GT(sut.allocated_bytes(), before);
  EXPECT_GE(sut.allocated_bytes(), 10'001 * sizeof(Entry));
}

TEST(EntriesTest, RandomHistoriesNeverGiveAnIdTwice) {
  const auto seed = static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Entries sut;
  std::set<EntryId> live;
  for (int round = 0; round < 20'000; ++round) {
    if (live.empty() || random() % 5 < 3) {
      const EntryId id = sut.make(kSpace);
      ASSERT_TRUE(live.insert(id).second);
    } else {
      const auto it = std::next(
          live.begin(), static_cast<long>(random() % std::min<std::size_t>(live.size(), 50)));
      sut.erase(*it);
      live.erase(it);
    }
    ASSERT_EQ(sut.size(), live.size());
  }
  std::set<EntryId> seen;
  sut.each([&](EntryId id, const Entry&) { seen.insert(id); });
  EXPECT_EQ(seen, live);
}

}  // namespace
}  // namespace kvd::store
