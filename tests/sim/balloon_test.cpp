// The blocks that an engine may use while its HBM comes and goes.
#include "kvd/sim/engine/balloon.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::sim::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr TimePoint kNow{1'000'000'000};

News news(std::vector<std::uint32_t> grown, std::vector<std::uint32_t> gone, std::int64_t allowed) {
  return {std::move(grown), std::move(gone), allowed, allowed};
}

TEST(Balloon, HasAllOfWhatStays) {
  Balloon sut(10, 10);
  EXPECT_FALSE(sut.elastic());
  EXPECT_EQ(sut.granted(), 10);
  Balloon::Blocks some;
  sut.take(3, some);
  EXPECT_THAT(some, ElementsAre(0, 1, 2));
  EXPECT_EQ(sut.free(), 7);
  sut.give(some);
  Balloon::Blocks next;
  sut.take(8, next);
  EXPECT_THAT(next, ElementsAre(3, 4, 5, 6, 7, 8, 9, 2)) << "who was freed last is served last";
  EXPECT_FALSE(sut.has_work());
}

TEST(Balloon, KeepsTheFirstChunkAndGrowsByOthers) {
  Balloon sut(10, 4);
  EXPECT_EQ(sut.granted(), 4);
  EXPECT_EQ(sut.chunks_for(4), 0);
  EXPECT_EQ(sut.chunks_for(5), 1);
  EXPECT_EQ(sut.chunks_for(1000), 2);
  sut.hear(news({2}, {}, 2));
  EXPECT_EQ(sut.granted(), 6) << "the last one is smaller";
  EXPECT_EQ(sut.have(), 1);
  EXPECT_TRUE(sut.has_work()) << "it has something to give back";
}

TEST(Balloon, AChunkLeavesOnceItsBlocksAreFree) {
  Balloon sut(12, 4);
  sut.hear(news({1, 2}, {}, 2));
  Balloon::Blocks some;
  sut.take(6, some);  // two of the second chunk
  EXPECT_THAT(sut.shrink(true, kNow), IsEmpty()) << "it may have all";
  sut.hear(news({}, {}, 1));
  EXPECT_THAT(sut.shrink(true, kNow), ElementsAre(2)) << "nobody uses it";
  sut.hear(news({}, {2}, 0));
  EXPECT_THAT(sut.shrink(true, kNow), IsEmpty());
  EXPECT_EQ(sut.free(), 0) << "what retires is not handed out";
  const Nanoseconds overdue = std::chrono::milliseconds(51);
  EXPECT_FALSE(sut.in_the_way(some, kNow));
  EXPECT_TRUE(sut.in_the_way(some, kNow + overdue));
  EXPECT_FALSE(sut.in_the_way({0, 1}, kNow + overdue));
  sut.give(some);
  EXPECT_EQ(sut.granted(), 4) << "what retires is claimed as it comes free";
  EXPECT_THAT(sut.shrink(true, kNow), ElementsAre(1));
  sut.hear(news({}, {1}, 0));
  EXPECT_EQ(sut.have(), 0);
}

TEST(Balloon, WhatMayStayAfterAllIsUsedAgain) {
  Balloon sut(8, 4);
  sut.hear(news({1}, {}, 0));
  Balloon::Blocks some;
  sut.take(5, some);
  EXPECT_THAT(sut.shrink(true, kNow), IsEmpty());
  EXPECT_EQ(sut.free(), 0);
  sut.hear(news({}, {}, 1));
  EXPECT_THAT(sut.shrink(true, kNow), IsEmpty());
  EXPECT_EQ(sut.free(), 3);
}

TEST(Balloon, WithoutRequestsAllGoesBack) {
  Balloon sut(12, 4);
  sut.hear(news({1, 2}, {}, 2));
  EXPECT_THAT(sut.shrink(false, kNow), ElementsAre(2, 1));
  EXPECT_TRUE(sut.has_work()) << "until it has heard that they are gone, and kvd of it";
  sut.hear({{}, {1, 2}, 0, 0});
  EXPECT_FALSE(sut.has_work());
}

TEST(Balloon, WaitsForGrowthInsteadOfPreempting) {
  Balloon sut(8, 4);
  EXPECT_TRUE(sut.has_room_coming(kNow)) << "kvd has not heard of it yet";
  EXPECT_TRUE(sut.is_short(kNow));
  EXPECT_FALSE(sut.has_room_coming(kNow + std::chrono::milliseconds(60)));
  sut.hear(news({}, {}, 1));
  EXPECT_TRUE(sut.has_room_coming(kNow + std::chrono::milliseconds(400))) << "it is granted";
  EXPECT_FALSE(sut.has_room_coming(kNow + std::chrono::milliseconds(600)));
  sut.hear(news({1}, {}, 1));
  EXPECT_FALSE(sut.has_room_coming(kNow + std::chrono::seconds(2))) << "there is no more";
}

}  // namespace
}  // namespace kvd::sim::test
