#include "planner/policy/unified.hpp"

#include <gtest/gtest.h>

#include "tests/unit/planner/policy/requests.hpp"

namespace kvd::planner::testing {
namespace {

using Indices = std::vector<std::uint32_t>;
constexpr Seconds kNow{10};

RotationRequest with_deposit(RotationRequest request, std::int64_t deposit) {
  request.deposit = deposit;
  return request;
}

TEST(Unified, NobodyLeavesForARequestThatIsNotLate) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {waiting(2, 8), with_deposit(running(2, 1), 20)});
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty()) << "2 s waited of 2.5 allowed";
  of.requests[0].t_arr = Seconds(7);
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{1}));
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
}

TEST(Unified, OnlyACoveredRequestLeaves) {
  UnifiedPolicy sut;
  const auto of = snapshot(
      0, 9, {waiting(2, 1), with_deposit(running(2, 1), 7), with_deposit(running(2, 5), 8)});
  const auto& decision = sut.decide(of, kNow, {});
  EXPECT_EQ(decision.preempted, (Indices{2}));
  EXPECT_EQ(decision.prioritized, (Indices{0}));
}

TEST(Unified, OfTheCoveredTheLongestOnTheGpuLeaves) {
  UnifiedPolicy sut;
  const auto of = snapshot(
      0, 9, {waiting(2, 1), with_deposit(running(2, 5), 90), with_deposit(running(2, 2), 10)});
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{2}));
}

TEST(Unified, OneThatMadeNoTokenYetStays) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {waiting(2, 1), with_deposit(running(2, 5), 90)});
  of.requests[1].made_token = false;
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty());
}

TEST(Unified, ARotaryRequestEvictsOnlyWhileItCanStillBeHelped) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {with_deposit(rotary(2, 1), 2), with_deposit(running(2, 5), 90)});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
  for (const std::int64_t deposit : {0, 3}) {
    of.requests[0].deposit = deposit;
    EXPECT_TRUE(sut.decide(of, kNow, {}).prioritized.empty()) << deposit;
  }
}

TEST(Unified, FreeRoomGoesByArrivalWithoutOvertaking) {
  UnifiedPolicy sut;
  auto parked = rotary(2, 9);
  parked.t_arr = Seconds(1);
  const auto of = snapshot(3, 9, {waiting(2, 9), parked, waiting(1, 9.5)});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{1}));
}

TEST(Unified, OnePassedOverTooOftenHasRoomKeptForIt) {
  UnifiedPolicy sut;
  auto of = snapshot(3, 9, {waiting(4, 9), waiting(2, 1), running(4, 1)});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{1}));
  of.requests[0].skips = kSkipLimit;
  EXPECT_TRUE(sut.decide(of, kNow, {}).prioritized.empty());
  of.b_hbm = Bytes(5);
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
}

TEST(Unified, GrowthBeyondTheRoomTakesTheLongestRunning) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {running(2, 1), running(2, 5)});
  of.growth = Bytes(1);
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{0}));
}

}  // namespace
}  // namespace kvd::planner::testing
