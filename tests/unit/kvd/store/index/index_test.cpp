// Cached blocks are found by what they hold, as far as their chain is known, and leave only when
// nobody counts on them.
#include "kvd/store/index/index.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/store/index/index_fixture.hpp"

namespace kvd::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr CacheTier kHbm = CacheTier::kHbm, kDram = CacheTier::kDram, kDisk = CacheTier::kDisk;

struct IndexTest : ::testing::Test {
  Index sut{{}};
  SpaceId space = sut.open(space_of(1));
  const std::vector<Digest> chain = digests(100, 5);

  ~IndexTest() override { EXPECT_EQ(sut.validate(), ""); }

  /// What a lookup finds, released at once.
  std::vector<store::Run> runs(const std::vector<Digest>& wanted, SpaceId in) {
    const Hit hit = sut.lookup(in, wanted);
    sut.release(hit.blocks);
    return hit.runs;
  }
  std::vector<store::Run> runs(const std::vector<Digest>& wanted) { return runs(wanted, space); }
  void place(EntryId id, CacheTier tier, std::uint32_t where) {
    sut.lease(id);
    EXPECT_TRUE(sut.place(id, tier, Place(where)));
    sut.release(id);
  }
  void evict(CacheTier tier) {
    const EntryId id = sut.victim(tier);
    ASSERT_TRUE(id);
    EXPECT_TRUE(sut.forget(id, tier));
  }
};

TEST_F(IndexTest, FindsNothingInAnEmptyIndex) {
  EXPECT_THAT(runs(chain), IsEmpty());
  EXPECT_THAT(runs({}), IsEmpty());
  EXPECT_FALSE(sut.victim(kHbm));
}

TEST_F(IndexTest, FindsTheLeadingPartThatIsKnown) {
  store_chain(sut, space, digests(100, 3), kHbm, 1);
  EXPECT_THAT(runs(chain), ElementsAre(store::Run{kHbm, 3}));
  EXPECT_THAT(runs(digests(100, 2)), ElementsAre(store::Run{kHbm, 2}));
  EXPECT_THAT(runs(digests(101, 2)), IsEmpty()) << "not from the start";
}

TEST_F(IndexTest, AnswersRunsByTheFastestTier) {
  const auto ids = store_chain(sut, space, chain, kDram, 1);
  place(ids[0], kHbm, 1);
  place(ids[3], kDisk, 7);
  (void)sut.forget(ids[3], kDram);
  EXPECT_THAT(runs(chain), ElementsAre(store::Run{kHbm, 1}, store::Run{kDram, 2},
                                       store::Run{kDisk, 1}, store::Run{kDram, 1}));
  const Hit hit = sut.lookup(space, chain);
  EXPECT_EQ(sut.at(hit.blocks[3]).at[index(kDisk)], Place(7));
  sut.release(hit.blocks);
}

TEST_F(IndexTest, CountsTheBlocksOfATierBySpace) {
  const auto ids = store_chain(sut, space, chain, kDram, 1);
  place(ids[0], kHbm, 1);
  EXPECT_EQ(sut.in(space, kDram), 5u);
  EXPECT_EQ(sut.in(space, kHbm), 1u);
  EXPECT_EQ(sut.in(sut.open(space_of(2)), kDram), 0u);
  EXPECT_EQ(sut.key(ids[2]), (Key{space_of(1), chain[2]}));
}

TEST_F(IndexTest, ALeasePreventsEviction) {
  store_chain(sut, space, chain, kHbm, 1);
  const Hit hit = sut.lookup(space, digests(100, 2));
  for (int i = 0; i < 3; ++i) evict(kHbm);
  EXPECT_FALSE(sut.victim(kHbm)) << "the reader counts on the two that are left";
  sut.release(hit.blocks);
  evict(kHbm);
  evict(kHbm);
  EXPECT_EQ(sut.size(), 0u);
}

TEST_F(IndexTest, EachReaderHasALeaseOfItsOwn) {
  store_chain(sut, space, {chain[0]}, kHbm, 1);
  const Hit one = sut.lookup(space, chain), other = sut.lookup(space, chain);
  sut.release(one.blocks);
  EXPECT_FALSE(sut.victim(kHbm));
  sut.release(other.blocks);
  EXPECT_EQ(sut.victim(kHbm), other.blocks[0]);
}

TEST_F(IndexTest, TakesLeavesBeforeHeads) {
  const auto ids = store_chain(sut, space, chain, kHbm, 1);
  const auto fork = sut.insert({space, ids[1], digest(900), kSaved});
  EXPECT_TRUE(sut.place(*fork, kHbm, Place(9)));
  for (const std::uint32_t expected : {4u, 3u, 2u}) {
    EXPECT_EQ(sut.victim(kHbm), ids[expected]);
    evict(kHbm);
  }
  EXPECT_FALSE(sut.victim(kHbm)) << "the fork is leased, and what is before it is no leaf";
  sut.release(*fork);
  EXPECT_EQ(sut.victim(kHbm), *fork);
}

TEST_F(IndexTest, LeavesAreThoseOfTheTier) {
  const auto ids = store_chain(sut, space, chain, kDram, 1);
  place(ids[0], kHbm, 1);
  EXPECT_EQ(sut.victim(kHbm), ids[0]) << "what comes after it is in DRAM";
  EXPECT_EQ(sut.victim(kDram), ids[4]);
}

TEST_F(IndexTest, StopsAtABlockWithoutPlaceUntilItHasOneAgain) {
  const auto ids = store_chain(sut, space, chain, kHbm, 1);
  EXPECT_EQ(sut.forget(ids[2], kHbm), Place(3)) << "its bytes were bad";
  EXPECT_THAT(runs(chain), ElementsAre(store::Run{kHbm, 2}));
  EXPECT_EQ(sut.size(), 5u) << "those after it are not lost";
  const auto again = sut.insert({space, ids[1], chain[2], kSaved});
  EXPECT_EQ(*again, ids[2]);
  EXPECT_TRUE(sut.place(*again, kHbm, Place(8)));
  sut.release(*again);
  EXPECT_THAT(runs(chain), ElementsAre(store::Run{kHbm, 5}));
}

TEST_F(IndexTest, ABlockThatNobodyCompletesIsNeverFoundNorKept) {
  const auto id = sut.insert({space, {}, chain[0], kSaved});
  EXPECT_THAT(runs(chain), IsEmpty());
  EXPECT_EQ(sut.size(), 1u);
  sut.release(*id);
  EXPECT_EQ(sut.size(), 0u);
}

TEST_F(IndexTest, OfTwoThatComputedTheSameBlockOneKeepsItsPlace) {
  const auto one = sut.insert({space, {}, chain[0], kSaved});
  const auto other = sut.insert({space, {}, chain[0], kSaved});
  EXPECT_EQ(*one, *other);
  EXPECT_TRUE(sut.place(*one, kHbm, Place(1)));
  EXPECT_FALSE(sut.place(*other, kHbm, Place(2)));
  EXPECT_EQ(sut.at(*one).at[index(kHbm)], Place(1));
  sut.release(*one);
  EXPECT_FALSE(sut.victim(kHbm));
  sut.release(*other);
}

TEST_F(IndexTest, RefusesADigestThatDoesNotStandForWhatIsBefore) {
  const auto ids = store_chain(sut, space, chain, kHbm, 1);
  const auto refused = sut.insert({space, ids[0], chain[3], kSaved});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(sut.insert({space, ids[0], chain[0], kSaved}).ok()) << "itself";
  EXPECT_THAT(runs({chain[0], chain[2]}), ElementsAre(store::Run{kHbm, 1})) << "nor looks them up";
}

TEST_F(IndexTest, TwoDomainsWithEqualPromptsNeverMeet) {
  store_chain(sut, space, chain, kHbm, 1);
  const SpaceId other = sut.open(space_of(2)), model = sut.open(space_of(1, 2));
  EXPECT_THAT(runs(chain, other), IsEmpty());
  EXPECT_THAT(runs(chain, model), IsEmpty());
  store_chain(sut, other, chain, kHbm, 11);
  EXPECT_EQ(sut.size(), 10u);
  EXPECT_EQ(sut.open(space_of(2)), other);
}

TEST_F(IndexTest, SpacesThatHaveNoBlockMakeWay) {
  const auto bytes_after = [&](std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t model = from; model < to; ++model) (void)sut.open(space_of(1, model));
    return sut.allocated_bytes();
  };
  store_chain(sut, space, chain, kHbm, 1);
  const std::size_t bytes = bytes_after(10, 2000);
  EXPECT_LE(bytes_after(2000, 20'000), bytes + bytes / 4);
  EXPECT_THAT(runs(chain), ElementsAre(store::Run{kHbm, 5}));
}

TEST_F(IndexTest, ADomainCannotCacheInAnyNumberOfSpaces) {
  store_chain(sut, space, chain, kHbm, 1);
  std::vector<EntryId> stored;
  for (std::uint64_t model = 10; stored.size() < 2000; ++model) {
    const SpaceId other = sut.open(space_of(1, model));
    if (!other) break;
    stored.push_back(store_chain(sut, other, {digest(model)}, kDram, 1).front());
  }
  EXPECT_GE(stored.size(), 500u);
  EXPECT_LT(stored.size(), 2000u);
  EXPECT_FALSE(sut.open(space_of(1, 5000)));
  EXPECT_EQ(sut.open(space_of(1)), space) << "who has blocks goes on";
  (void)sut.forget(stored.front(), kDram);
  EXPECT_TRUE(sut.open(space_of(1, 5000))) << "one of them has lost its last block";
}

TEST_F(IndexTest, WhatAnotherDomainCachedChangesNoStepOfALookup) {
  const SpaceId other = sut.open(space_of(2));
  store_chain(sut, other, digests(5000, 3000), kHbm, 1);
  std::vector<std::uint64_t> before;
  const auto probes = [&](std::uint64_t prompt) {
    const std::uint64_t at = sut.probes();
    EXPECT_THAT(runs(digests(prompt, 40), other), IsEmpty());
    return sut.probes() - at;
  };
  for (std::uint64_t i = 0; i < 500; ++i) before.push_back(probes(100'000 + 40 * i));
  for (std::uint64_t i = 0; i < 500; ++i) {
    store_chain(sut, space, digests(100'000 + 40 * i, 40), kHbm, 1);
  }
  for (std::uint64_t i = 0; i < 500; ++i) EXPECT_EQ(probes(100'000 + 40 * i), before[i]);
}

TEST_F(IndexTest, ADomainThatGoesLeavesNothing) {
  const SpaceId other = sut.open(space_of(2));
  const auto ids = store_chain(sut, other, chain, kDram, 1);
  store_chain(sut, space, chain, kDram, 11);
  place(ids[0], kHbm, 1);
  (void)sut.forget(ids[1], kDram);
  const auto places = sut.close(other);
  EXPECT_THAT(places[index(kHbm)], ElementsAre(Place(1)));
  EXPECT_THAT(places[index(kDram)], ElementsAre(Place(1), Place(3), Place(4), Place(5)));
  EXPECT_EQ(sut.size(), 5u);
  EXPECT_THAT(runs(chain, sut.open(space_of(2))), IsEmpty());
  EXPECT_THAT(runs(chain), ElementsAre(store::Run{kDram, 5}));
}

TEST_F(IndexTest, WhatGoesOnAsTheLastTimeIsOneUse) {
  const auto ids = store_chain(sut, space, chain, kHbm, 1);
  for (int turn = 0; turn < 6; ++turn) sut.release(sut.lookup(space, chain).blocks);
  EXPECT_EQ(sut.at(ids[0]).touches, 7u);
  EXPECT_EQ(sut.at(ids[0]).uses, 1u);
  for (std::uint64_t other = 900; other < 903; ++other) {
    const std::vector<Digest> fork = {chain[0], chain[1], digest(other)};
    sut.release(sut.lookup(space, fork).blocks);
  }
  EXPECT_EQ(sut.at(ids[0]).uses, 1u) << "the second block follows every time";
  EXPECT_EQ(sut.at(ids[1]).uses, 4u);
}

TEST_F(IndexTest, StoringGoesOnAsALookupDoes) {
  const auto ids = store_chain(sut, space, chain, kHbm, 1);
  for (std::uint64_t other = 900; other < 903; ++other) {
    const auto fork = sut.insert({space, sut.peek(space, chain[0]), digest(other), kSaved});
    ASSERT_TRUE(fork.ok());
    sut.release(*fork);
  }
  EXPECT_EQ(sut.at(ids[0]).uses, 4u);
}

TEST_F(IndexTest, BlocksThatStandAloneArePopularWithThoseAfterThem) {
  std::vector<EntryId> ids;
  for (const Digest& each : chain) ids.push_back(store_chain(sut, space, {each}, kDram, 1)[0]);
  const auto look_up = [&](std::size_t blocks, const Digest* next) {
    sut.release(sut.lookup_each(space, std::span(chain).first(blocks), next).blocks);
  };
  for (std::size_t turn = 1; turn <= 5; ++turn) look_up(turn, nullptr);
  EXPECT_EQ(sut.at(ids[0]).uses, 1u) << "each turn goes on where the last one ended";
  for (int prompt = 0; prompt < 3; ++prompt) look_up(2, nullptr);
  EXPECT_EQ(sut.at(ids[1]).uses, 4u) << "they end there and go on nobody knows how";
  EXPECT_EQ(sut.at(ids[0]).uses, 4u);
  EXPECT_EQ(sut.at(ids[2]).uses, 1u);
  look_up(2, &chain[2]);
  EXPECT_EQ(sut.at(ids[1]).uses, 4u) << "it may have been this one";
}

TEST_F(IndexTest, OfBlocksThatStandAloneTheLastOfALookupLeavesFirst) {
  std::vector<EntryId> ids;
  for (const Digest& each : chain) ids.push_back(store_chain(sut, space, {each}, kDram, 1)[0]);
  sut.release(sut.lookup_each(space, chain, nullptr).blocks);
  EXPECT_EQ(sut.victim(kDram), ids.back());
}

TEST_F(IndexTest, UsesHalveWhenEightTimesTheBlocksWereStored) {
  const auto ids = store_chain(sut, space, digests(100, 1), kHbm, 1);
  for (std::uint64_t other = 900; other < 908; ++other) {
    sut.release(sut.lookup(space, std::vector{chain[0], digest(other)}).blocks);
  }
  ASSERT_EQ(sut.at(ids[0]).uses, 8u);
  for (std::uint64_t i = 0; i < 9; ++i) {
    const auto other = store_chain(sut, space, digests(1000 + i, 1), kHbm, 2);
    (void)sut.forget(other[0], kHbm);
  }
  sut.release(sut.lookup(space, std::span(chain).first(1)).blocks);
  EXPECT_EQ(sut.at(ids[0]).uses, 4u);
}

using IndexDeathTest = IndexTest;
TEST_F(IndexDeathTest, AbortsOnWhatOnlyABugAsksFor) {
  const auto ids = store_chain(sut, space, chain, kHbm, 1);
  EXPECT_DEATH(sut.release(ids[0]), "nobody leases");
  EXPECT_DEATH((void)sut.place(ids[0], kDram, Place(1)), "whoever leases");
  EXPECT_DEATH((void)sut.forget(ids[0], kDram), "does not have the block");
  EXPECT_DEATH((void)sut.at(EntryId(77)), "no such entry");
  sut.lease(ids[4]);
  EXPECT_DEATH((void)sut.close(space), "while its blocks are leased");
  sut.release(ids[4]);
}

}  // namespace
}  // namespace kvd::store
