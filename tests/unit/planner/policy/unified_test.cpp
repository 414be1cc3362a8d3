#include "planner/policy/unified.hpp"

#include <gtest/gtest.h>

#include "tests/unit/planner/policy/requests.hpp"

namespace kvd::planner::testing {
namespace {

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

TEST(Unified, OneOfALooserClassLeavesAtOnce) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {waiting(2, 9), with_deposit(running(2, 1), 20)});
  of.requests[1].ttft_slo = Seconds(600);
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{1})) << "though it has waited for 1 s";
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
  of.requests[1].deposit = 7;
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty()) << "it would be late itself";
}

TEST(Unified, NobodyLeavesForOneOfALooserClass) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {waiting(2, -400), with_deposit(running(2, 1), 20)});
  of.requests[0].ttft_slo = Seconds(600);
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty());
  of.requests.push_back(with_deposit(running(2, 5), 20));
  of.requests[2].ttft_slo = Seconds(600);
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{2}));
}

TEST(Unified, TheLooserClassLeavesFirst) {
  UnifiedPolicy sut;
  auto of = snapshot(
      0, 9, {waiting(2, 1), with_deposit(running(2, 1), 90), with_deposit(running(2, 5), 90)});
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{1})) << "the longest on the GPU";
  of.requests[2].ttft_slo = Seconds(6);
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{2}));
  auto growing = snapshot(-1, 9, {running(2, 1), running(2, 5)});
  EXPECT_EQ(sut.decide(growing, kNow, {}).preempted, (Indices{0}));
  growing.requests[1].ttft_slo = Seconds(6);
  EXPECT_EQ(sut.decide(growing, kNow, {}).preempted, (Indices{1}));
}

TEST(Unified, WhoIsDueFirstEntersFirst) {
  UnifiedPolicy sut;
  auto of = snapshot(2, 9, {waiting(2, 8), waiting(2, 9)});
  of.requests[0].ttft_slo = Seconds(7);
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{1})) << "14 s, and before that 15 s";
  of.requests[0].ttft_slo = Seconds(5.5);
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
  of.requests[0].place = 1;
  of.requests[1].place = 0;
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{1})) << "who asks knows of turns";
}

TEST(Unified, OneThatIsLateGoesBehindItsClassAndBeforeThoseThatHaveTime) {
  UnifiedPolicy sut;
  const RotationConfig goodput{.overload = Overload::kGoodput};
  auto of = snapshot(4, 9, {waiting(2, 1), waiting(2, 8), waiting(2, 0)});
  of.requests[2].ttft_slo = Seconds(600);
  EXPECT_EQ(sut.decide(of, kNow, goodput).prioritized, (Indices{1, 0}));
  of.requests[0].ttft_slo = Seconds(1e-9);
  EXPECT_EQ(sut.decide(of, kNow, goodput).prioritized, (Indices{1, 0})) << "nobody could meet it";
  of.requests[0].ttft_slo = Seconds(5);
  of.requests[0].t_arr = Seconds(-160);
  EXPECT_EQ(sut.decide(of, kNow, goodput).prioritized, (Indices{0, 1})) << "32 goals have passed";
}

TEST(Unified, OfTheParkedTheTighterClassComesBackFirst) {
  UnifiedPolicy sut;
  auto of = snapshot(2, 9, {with_deposit(rotary(2, 1), 9), with_deposit(rotary(2, 5), 9)});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
  of.requests[0].ttft_slo = Seconds(600);
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{1}));
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
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{1})) << "many steps, but one second";
  of.requests[0].t_arr = Seconds(7);
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

TEST(Unified, TheLastOneLeavesForItsOwnGrowthWhereOthersMayHoldWhatItLacks) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {running(2, 1)});
  of.growth = Bytes(1);
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{0}));
  of.at_once = true;
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty());
}

TEST(Unified, ADepositCoversHowLateOthersCameBack) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {waiting(2, 1), with_deposit(running(2, 5), 17)});
  of.requests[1].tbt_slo = Seconds(0.1);
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{1})) << "nobody was late: 8 suffice";
  of.mean_lateness = Seconds(0.95);
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty()) << "0.9 s saved beyond these";
  of.requests[1].deposit = 18;
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{1}));
}

TEST(Unified, ParkedRequestsEnterFreeRoomBeforeNewPrompts) {
  UnifiedPolicy sut;
  auto parked = with_deposit(rotary(2, 9), 5);
  parked.t_arr = Seconds(9.5);
  auto of = snapshot(2, 9, {waiting(2, 9), parked});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{1}));
  of.requests[1].bytes = Bytes(3);
  EXPECT_TRUE(sut.decide(of, kNow, {}).prioritized.empty()) << "nor does one overtake it";
}

TEST(Unified, NoMoreStreamsBeginThanEnginesCanPaceWhileSomebodyIsParked) {
  UnifiedPolicy sut;
  auto of = snapshot(2, 9, {waiting(2, 7), with_deposit(rotary(8, 5), 5), running(2, 1)});
  for (auto& request : of.requests) request.tbt_slo = Seconds(1);
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0})) << "no step was measured yet";
  of.step = Seconds(0.56);
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}))
      << "3 asked, 3.04 promised a second";
  of.step = Seconds(0.57);
  EXPECT_TRUE(sut.decide(of, kNow, {}).prioritized.empty()) << "2.98 promised";
  of.requests[1].state = RequestState::kRunning;
  of.requests[1].t_run = Seconds(5);
  of.growth = Bytes(1);
  of.b_hbm = Bytes(3);
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0})) << "nobody is parked";
}

TEST(Unified, AMeasuredPaceCountsMoreThanOneOfSteps) {
  UnifiedPolicy sut;
  auto of = snapshot(2, 9, {waiting(2, 7), with_deposit(rotary(8, 5), 5), running(2, 1)});
  for (auto& request : of.requests) request.tbt_slo = Seconds(1);
  of.step = Seconds(0.01);
  of.tokens_per_s = 3.6;
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0})) << "3 asked, 3.06 promised";
  of.tokens_per_s = 3.5;
  EXPECT_TRUE(sut.decide(of, kNow, {}).prioritized.empty()) << "2.98 promised";
}

TEST(Unified, GoalsOfOneClassDifferByLessThanATwofold) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {waiting(2, 1), with_deposit(running(2, 1), 90)});
  of.requests[1].ttft_slo = Seconds(2.6);
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{1}));
  of.requests[1].ttft_slo = Seconds(2.4);
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty()) << "nobody leaves for a looser class";
  of.requests[0].t_arr = Seconds(9);
  of.requests[1].ttft_slo = Seconds(9.9);
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty()) << "it has time, and they are alike";
  of.requests[1].ttft_slo = Seconds(10.1);
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{1}));
}

/// The client shows tokens when they come. The last one came `ago`, and a gap of a second is too
/// long.
RotationRequest seen_at_once(RotationRequest made, double ago) {
  made.t_last = kNow - Seconds(ago);
  made.gap = Seconds(1);
  return made;
}

/// Steps of 10 ms.
RotationSnapshot with_gaps(std::int64_t room, std::vector<RotationRequest> requests) {
  RotationSnapshot made = snapshot(room, 100, std::move(requests));
  made.step = Seconds(0.01);
  return made;
}

TEST(Unified, NobodyStaysOutLongerThanItsLongestGapWhateverItHasSavedUp) {
  UnifiedPolicy sut;
  const auto here = seen_at_once(with_deposit(running(2, 1), 90), 0.01);
  const auto out = with_deposit(rotary(2, 9), 600);
  auto of = with_gaps(0, {seen_at_once(out, 0.70), here});
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty());
  of.requests[0] = seen_at_once(out, 0.72);
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{1}))
      << "four steps before three quarters of its gap";
  of.requests[0].gap.reset();
  of.requests[1].gap.reset();
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty()) << "its client paces";
}

TEST(Unified, ForAGapThatIsNearlyOverAnybodyLeavesWhoIsNotDueBack) {
  UnifiedPolicy sut;
  auto of = with_gaps(0, {seen_at_once(rotary(2, 9), 0.9), seen_at_once(running(2, 1), 0.01)});
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{1})) << "covered or not";
  of.requests[1] = seen_at_once(running(2, 1), 0.73);
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty());
  of = with_gaps(0, {waiting(2, 1), seen_at_once(running(2, 1), 0.01)});
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty()) << "not for a prompt";
}

TEST(Unified, WhatAVictimLeavesBeyondNeedIsHadAtOnceWhereItIsRoomAtOnce) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {waiting(2, 1), waiting(3, 9), with_deposit(running(5, 1), 90)});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0})) << "it has to be copied first";
  of.at_once = true;
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0, 1}));
  of.requests[1].bytes = Bytes(4);
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
}

TEST(Unified, WhoIsDueBackSoonDoesNotLeave) {
  UnifiedPolicy sut;
  auto of = with_gaps(0, {waiting(2, 1), seen_at_once(with_deposit(running(2, 1), 90), 0.66)});
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{1})) << "0.09 s are nine steps";
  of.mean_lateness = Seconds(0.02);
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty()) << "and others were late, too";
}

TEST(Unified, WhereGapsCountThoseLeaveWhoseTokensLastLongest) {
  UnifiedPolicy sut;
  auto of = with_gaps(0, {waiting(2, 1), seen_at_once(with_deposit(running(2, 1), 20), 0.01),
                          seen_at_once(with_deposit(running(2, 5), 90), 0.01)});
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{2}));
}

TEST(Unified, WhereGapsCountPromptsComeBeforeParkedOnesThatHaveTime) {
  UnifiedPolicy sut;
  auto of = with_gaps(1, {waiting(1, 9), seen_at_once(with_deposit(rotary(1, 9), 90), 0.1)});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
  of.requests[1].deposit = 2;
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{1})) << "it is about to be dry";
}

TEST(Unified, NoMoreStartThanCanComeBackWithinTheirGapsForSixteenSteps) {
  UnifiedPolicy sut;
  auto next = waiting(1, 9);
  next.gap = Seconds(1);
  auto of = with_gaps(2, {next, seen_at_once(with_deposit(rotary(12, 9), 90), 0.1)});
  of.tokens_per_s = 1000;
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0})) << "12 x 0.16 s in 2 x 1 s";
  of.requests[1].bytes = Bytes(13);
  EXPECT_TRUE(sut.decide(of, kNow, {}).prioritized.empty());
}

TEST(Unified, GoodputServesWhoMissedTheFirstTokenLast) {
  UnifiedPolicy sut;
  const RotationConfig goodput{.overload = Overload::kGoodput};
  const auto of = snapshot(2, 9, {waiting(2, 1), waiting(2, 6), waiting(2, 9)});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
  EXPECT_EQ(sut.decide(of, kNow, goodput).prioritized, (Indices{1})) << "9 s of 5 are lost";
  auto evicting = snapshot(0, 9, {waiting(2, 1), with_deposit(running(2, 1), 20)});
  EXPECT_EQ(sut.decide(evicting, kNow, {}).preempted, (Indices{1}));
  EXPECT_TRUE(sut.decide(evicting, kNow, goodput).preempted.empty()) << "nor does it evict";
}

TEST(Unified, HopelessIsWhoCannotEndItsPrefillInTime) {
  UnifiedPolicy sut;
  const RotationConfig goodput{.overload = Overload::kGoodput};
  auto of = snapshot(2, 9, {waiting(2, 6), waiting(2, 9)});
  of.requests[0].prefill = Seconds(1);
  EXPECT_EQ(sut.decide(of, kNow, goodput).prioritized, (Indices{0})) << "5 s are enough, just";
  of.requests[0].prefill = Seconds(1.5);
  EXPECT_EQ(sut.decide(of, kNow, goodput).prioritized, (Indices{1}));
}

TEST(Unified, GoodputLetsWaitAsLongAsTheLongestAnswersTake) {
  UnifiedPolicy sut;
  const RotationConfig goodput{.overload = Overload::kGoodput};
  auto of = snapshot(2, 9, {waiting(2, 1), waiting(2, 6)});
  of.requests[1].output_tokens = Tokens(10);
  of.requests[0].skips = 10 * kSkipLimit - 1;
  EXPECT_EQ(sut.decide(of, kNow, goodput).prioritized, (Indices{1}));
  ++of.requests[0].skips;
  EXPECT_EQ(sut.decide(of, kNow, goodput).prioritized, (Indices{0}));
}

TEST(Unified, WhereNobodyIsCoveredPrefillGoesToDram) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 5, {waiting(3, 1), waiting(3, 2), waiting(2, 9), running(9, 1)});
  EXPECT_TRUE(sut.decide(of, kNow, {}).layerwise.empty()) << "no DRAM known";
  of.dram = DramUse{Bytes(100), Bytes(50)};
  EXPECT_EQ(sut.decide(of, kNow, {}).layerwise, (Indices{0})) << "the second exceeds a step's 5";
  of.b_xfer = Bytes(20);
  EXPECT_EQ(sut.decide(of, kNow, {}).layerwise, (Indices{0, 1})) << "the third is not urgent";
  of.requests.push_back(with_deposit(rotary(9, 5), 0));
  EXPECT_TRUE(sut.decide(of, kNow, {}).layerwise.empty()) << "one more stream would hold it up";
  of.requests.back().deposit = 9;
  EXPECT_EQ(sut.decide(of, kNow, {}).layerwise, (Indices{0, 1}));
  of.requests[3].deposit = 20;
  EXPECT_TRUE(sut.decide(of, kNow, {}).layerwise.empty()) << "one is covered now";
}

}  // namespace
}  // namespace kvd::planner::testing
