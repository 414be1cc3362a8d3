#include "planner/policy/fcfs.hpp"

#include <gtest/gtest.h>

#include "tests/unit/planner/policy/requests.hpp"

namespace kvd::planner::testing {
namespace {

TEST(Fcfs, StopsAtTheFirstThatDoesNotFit) {
  FcfsPolicy sut;
  const auto& decision = sut.decide(
      snapshot(5, 9, {waiting(1, 3), rotary(4, 1), waiting(6, 2), running(4, 0)}), Seconds(9), {});
  EXPECT_TRUE(decision.contention);
  EXPECT_EQ(decision.prioritized, (Indices{1}));
  EXPECT_TRUE(decision.preempted.empty());
  EXPECT_FALSE(decision.b_left);
  EXPECT_FALSE(decision.b_swap);
}

TEST(Fcfs, GrowthOfTheRunningComesFirst) {
  FcfsPolicy sut;
  auto tight = snapshot(5, 9, {waiting(5, 3)});
  tight.growth = Bytes(1);
  EXPECT_TRUE(sut.decide(tight, Seconds(9), {}).prioritized.empty());
  EXPECT_EQ(sut.decide(tight, Seconds(9), {.paper = true}).prioritized, (Indices{0}));
}

TEST(Fcfs, EqualArrivalsKeepInputOrder) {
  FcfsPolicy sut;
  const auto& decision =
      sut.decide(snapshot(9, 0, {waiting(1, 2), waiting(1, 2), waiting(1, 1)}), Seconds(9), {});
  EXPECT_EQ(decision.prioritized, (Indices{2, 0, 1}));
}

}  // namespace
}  // namespace kvd::planner::testing
