#include "kvd/pool/free_slots.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::pool {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::uint32_t> take(FreeSlots& slots, std::uint32_t wanted) {
  std::vector<std::uint32_t> taken;
  slots.take(wanted, [&](SlotRun run) {
    for (std::uint32_t i = 0; i < run.count; ++i) taken.push_back(run.first + i);
  });
  return taken;
}

TEST(FreeSlots, NoneByDefault) {
  FreeSlots sut;
  EXPECT_EQ(sut.count(), 0u);
  EXPECT_FALSE(sut.contains(0));
  EXPECT_THAT(take(sut, 0), IsEmpty());
}

TEST(FreeSlots, GivesTheLowestIndexFirst) {
  FreeSlots sut(3);
  EXPECT_THAT(take(sut, 1), ElementsAre(0));
  EXPECT_THAT(take(sut, 2), ElementsAre(1, 2));
  EXPECT_EQ(sut.count(), 0u);
}

TEST(FreeSlots, GivesAllAcrossWordBoundaries) {
  for (const std::uint32_t slots : {1u, 63u, 64u, 65u, 128u, 129u}) {
    FreeSlots sut(slots);
    const auto taken = take(sut, slots);
    ASSERT_EQ(taken.size(), slots);
    for (std::uint32_t i = 0; i < slots; ++i) EXPECT_EQ(taken[i], i);
    EXPECT_EQ(sut.count(), 0u);
    EXPECT_FALSE(sut.contains(slots));
  }
}

TEST(FreeSlots, PrefersARunOfNeighboursToLowerScatteredOnes) {
  FreeSlots sut(10);
  static_cast<void>(take(sut, 10));
  for (const std::uint32_t index : {1u, 3u, 6u, 7u, 8u}) sut.put({index, 1});
  EXPECT_THAT(take(sut, 2), ElementsAre(6, 7));
}

TEST(FreeSlots, FindsARunThatCrossesAWord) {
  FreeSlots sut(130);
  static_cast<void>(take(sut, 130));
  for (const std::uint32_t index : {5u, 62u, 63u, 64u, 65u, 129u}) sut.put({index, 1});
  EXPECT_THAT(take(sut, 4), ElementsAre(62, 63, 64, 65));
}

TEST(FreeSlots, FindsARunThatEndsWithTheSlab) {
  FreeSlots sut(64);
  static_cast<void>(take(sut, 64));
  for (const std::uint32_t index : {0u, 62u, 63u}) sut.put({index, 1});
  EXPECT_THAT(take(sut, 2), ElementsAre(62, 63));
}

TEST(FreeSlots, WithoutARunGivesTheLowestAscending) {
  FreeSlots sut(10);
  static_cast<void>(take(sut, 10));
  for (const std::uint32_t index : {9u, 1u, 5u, 3u}) sut.put({index, 1});
  EXPECT_THAT(take(sut, 3), ElementsAre(1, 3, 5));
  EXPECT_THAT(take(sut, 1), ElementsAre(9));
}

TEST(FreeSlots, FindsAnIndexPutBackBeforeTheLowestFreeOne) {
  FreeSlots sut(200);
  static_cast<void>(take(sut, 190));
  sut.put({2, 1});
  EXPECT_THAT(take(sut, 1), ElementsAre(2));
  EXPECT_THAT(take(sut, 1), ElementsAre(190));
}

TEST(FreeSlots, NeighboursArePutBackTogether) {
  FreeSlots sut(200);
  static_cast<void>(take(sut, 200));
  sut.put({60, 70});
  EXPECT_EQ(sut.count(), 70u);
  EXPECT_FALSE(sut.contains(59));
  EXPECT_TRUE(sut.contains(60));
  EXPECT_TRUE(sut.contains(129));
  EXPECT_FALSE(sut.contains(130));
  std::vector<std::uint32_t> runs;
  sut.take(70, [&](SlotRun run) { runs.insert(runs.end(), {run.first, run.count}); });
  EXPECT_THAT(runs, ElementsAre(60, 70));
  sut.put({199, 1});
  EXPECT_DEATH(sut.put({190, 10}), "freed twice");
  EXPECT_DEATH(sut.put({190, 11}), "does not exist");
}

TEST(FreeSlotsDeathTest, RefusesBrokenRules) {
  FreeSlots sut(2);
  EXPECT_DEATH(sut.put({0, 1}), "freed twice");
  EXPECT_DEATH(sut.put({2, 1}), "does not exist");
  EXPECT_DEATH(static_cast<void>(take(sut, 3)), "more slots taken");
}

}  // namespace
}  // namespace kvd::pool
