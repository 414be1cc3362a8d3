#include "planner/baselines/queue_policy.hpp"

#include <gtest/gtest.h>

#include "tests/unit/planner/policy/requests.hpp"

namespace kvd::planner::testing {
namespace {

TEST(SiCode, TheLongestRunningLeaveStrictlyBelowTheBudgetWhateverTheQueueNeeds) {
  QueuePolicy sut("si_code", QueueRule::kSiCode);
  auto of = snapshot(1, 6, {waiting(2, 1), running(3, 4), running(2, 2), running(1, 6)});
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{2, 1})) << "2 + 3; one more makes 6";
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
  of.b_xfer = Bytes(5);
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{2}));
}

TEST(SiCode, AFreePoolAtTheTargetPreemptsNobody) {
  QueuePolicy sut("si_code", QueueRule::kSiCode);
  const auto& decision = sut.decide(snapshot(4, 4, {waiting(5, 1), running(3, 4)}), kNow, {});
  EXPECT_TRUE(decision.contention);
  EXPECT_TRUE(decision.preempted.empty());
  EXPECT_TRUE(decision.prioritized.empty());
}

TEST(SiCode, TheQueueIsOrderedByTimeOfEnteringItAndNobodyOvertakes) {
  QueuePolicy sut("si_code", QueueRule::kSiCode);
  auto back = rotary(2, 6);
  back.t_arr = Seconds(0);
  const auto& decision = sut.decide(snapshot(3, 0, {back, waiting(2, 3), waiting(1, 8)}), kNow, {});
  EXPECT_EQ(decision.prioritized, (Indices{1}));
}

TEST(WaitingFirst, WaitingRequestsEvictAndRotaryOnesDoNot) {
  QueuePolicy sut("waiting_first", QueueRule::kWaitingFirst);
  const auto of = snapshot(1, 9, {rotary(2, 1), waiting(3, 8), running(2, 2), running(2, 5)});
  const auto& decision = sut.decide(of, kNow, {});
  EXPECT_EQ(decision.prioritized, (Indices{1})) << "the rotary one finds no room";
  EXPECT_EQ(decision.preempted, (Indices{2})) << "only who must leave";
}

TEST(WaitingFirst, OneIterationsTransfersBoundTheEvictions) {
  QueuePolicy sut("waiting_first", QueueRule::kWaitingFirst);
  const auto of = snapshot(0, 2, {waiting(2, 1), waiting(2, 2), running(2, 2), running(2, 5)});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
}

TEST(SwappedFirst, RotaryRequestsGoFirstIntoFreeRoomAlone) {
  QueuePolicy sut("swapped_first", QueueRule::kSwappedFirst);
  auto of = snapshot(3, 9, {waiting(1, 1), rotary(2, 5), rotary(2, 6), running(4, 2)});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{1}));
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty());
  of.b_hbm = Bytes(4);
  of.requests[0].bytes = Bytes(2);
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{1, 2}));
}

TEST(SwappedFirst, GrowthMakesTheLastToStartLeave) {
  QueuePolicy sut("swapped_first", QueueRule::kSwappedFirst);
  auto of = snapshot(0, 9, {waiting(1, 1), running(2, 2), running(2, 6)});
  of.growth = Bytes(1);
  const auto& decision = sut.decide(of, kNow, {});
  EXPECT_EQ(decision.preempted, (Indices{2}));
  EXPECT_TRUE(decision.prioritized.empty());
}

TEST(QueuePolicies, ShareTheDramGates) {
  for (const auto rule : {QueueRule::kSiCode, QueueRule::kWaitingFirst}) {
    QueuePolicy sut("any", rule);
    auto of = snapshot(1, 9, {waiting(2, 1), running(2, 2)});
    of.dram = DramUse{Bytes(100), Bytes(20)};
    EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
    of.dram->free = Bytes(9);
    EXPECT_TRUE(sut.decide(of, kNow, {}).prioritized.empty());
    of.requests[0] = rotary(2, 1);
    of.dram->free = Bytes(5);
    EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty());
  }
}

}  // namespace
}  // namespace kvd::planner::testing
