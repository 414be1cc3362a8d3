#include "planner/policy/paced.hpp"

#include <gtest/gtest.h>

#include "tests/unit/planner/policy/requests.hpp"

namespace kvd::planner::testing {
namespace {

constexpr Seconds kStep{0.01};
constexpr Seconds kTbt{0.03};
constexpr RotationConfig kGoodput{3, 0, 0.5, false, Overload::kGoodput};
constexpr RotationConfig kTtft{3, 0, 0.5, false, Overload::kTtft};

/// A prompt that waits, with a goal of a second.
RotationRequest prompt(std::int64_t bytes, double waited) {
  RotationRequest request = waiting(bytes, kNow.count() - waited);
  request.ttft_slo = Seconds(1);
  request.tbt_slo = kTbt;
  return request;
}

/// Its next token is late in `slack` seconds. Arrived `age` ago.
RotationRequest decoding(std::int64_t bytes, double slack, double age = 5) {
  RotationRequest request = running(bytes, 1);
  request.t_arr = Seconds(kNow.count() - age);
  request.t_due = kNow + Seconds(slack);
  request.ttft_slo = Seconds(1);
  request.tbt_slo = kTbt;
  return request;
}

RotationRequest parked(std::int64_t bytes, double slack, double age = 5) {
  RotationRequest request = decoding(bytes, slack, age);
  request.state = RequestState::kRotary;
  request.t_run.reset();
  request.t_last = Seconds(9);
  return request;
}

/// Free bytes, the link no bound, steps of 10 ms.
RotationSnapshot with(std::int64_t room, std::vector<RotationRequest> requests) {
  RotationSnapshot made = snapshot(room, 100, std::move(requests));
  made.pace.step = kStep;
  return made;
}

Indices leaving(const RotationSnapshot& of, const RotationConfig& config = kGoodput) {
  PacedPolicy sut;
  return sut.decide(of, kNow, config).preempted;
}
Indices entering(const RotationSnapshot& of, const RotationConfig& config = kGoodput) {
  PacedPolicy sut;
  return sut.decide(of, kNow, config).prioritized;
}

TEST(Paced, NobodyLeavesWhileNobodyWaits) {
  EXPECT_TRUE(leaving(with(0, {decoding(2, 9), decoding(2, -1)})).empty());
}

TEST(Paced, APromptWaitsForFreeRoomUntilHalfOfItsGoalHasPassed) {
  EXPECT_TRUE(leaving(with(0, {prompt(2, 0.4), decoding(2, 9)})).empty());
  const auto late = with(0, {prompt(2, 0.6), decoding(2, 9)});
  EXPECT_EQ(leaving(late), (Indices{1}));
  EXPECT_EQ(entering(late), (Indices{0}));
}

TEST(Paced, OnlyWhoCanDoWithoutEightStepsLeaves) {
  EXPECT_TRUE(leaving(with(0, {prompt(2, 0.6), decoding(2, 0.079)})).empty());
  EXPECT_EQ(leaving(with(0, {prompt(2, 0.6), decoding(2, 0.081)})), (Indices{1}));
}

TEST(Paced, AVictimMustAlsoCoverHowLateOthersCameBack) {
  auto of = with(0, {prompt(2, 0.6), decoding(2, 0.5)});
  of.pace.lateness = Seconds(0.41);
  EXPECT_EQ(leaving(of), (Indices{1})) << "0.08 + 0.41 < 0.5";
  of.pace.lateness = Seconds(0.43);
  EXPECT_TRUE(leaving(of).empty());
}

TEST(Paced, WhoseTokensLastLongestLeaves) {
  EXPECT_EQ(leaving(with(0, {prompt(2, 0.6), decoding(2, 1), decoding(2, 3), decoding(2, 2)})),
            (Indices{2}));
}

TEST(Paced, AsManyLeaveAsItTakesOrNone) {
  auto of = with(1, {prompt(5, 0.6), decoding(2, 1), decoding(2, 3), decoding(2, 2)});
  EXPECT_EQ(leaving(of), (Indices{2, 3}));
  of.requests[1].t_due = of.requests[3].t_due = kNow;
  EXPECT_TRUE(leaving(of).empty()) << "one alone would not do";
  EXPECT_TRUE(entering(of).empty());
  of = with(1, {prompt(8, 0.6), decoding(2, 1), decoding(2, 3), decoding(2, 2)});
  EXPECT_TRUE(leaving(of).empty()) << "nor would all together";
}

TEST(Paced, WithoutSavingsToLendNobodyLeaves) {
  auto of = with(0, {prompt(2, 0.6), decoding(2, 9)});
  of.requests[1].tbt_slo = Seconds(0.019);
  EXPECT_TRUE(leaving(of).empty()) << "a goal between tokens of less than two steps";
  of.requests[1].tbt_slo = Seconds(0.021);
  EXPECT_EQ(leaving(of), (Indices{1}));
}

TEST(Paced, BeforeAStepWasMeasuredNobodyLeaves) {
  auto of = with(0, {prompt(2, 0.6), decoding(2, 9)});
  of.pace.step = Seconds(0);
  EXPECT_TRUE(leaving(of).empty());
}

TEST(Paced, OneThatMadeNoTokenSinceItCameInStays) {
  auto of = with(0, {prompt(2, 0.6), decoding(2, 9)});
  of.requests[1].made_token = false;
  EXPECT_TRUE(leaving(of).empty());
  of.requests[1].made_token = true;
  of.requests[1].prefilling = true;
  EXPECT_TRUE(leaving(of).empty());
}

TEST(Paced, ParkedOnesAboutToBeDryComeFirstThenPromptsThenTheOthers) {
  const auto of =
      with(9, {prompt(1, 0.1), parked(1, 5), parked(1, 0.035), parked(1, 0.005), prompt(1, 0.2)});
  EXPECT_EQ(entering(of), (Indices{3, 2, 4, 0, 1}));
}

TEST(Paced, AParkedOneComesBackSoEarlyThatItsMoveTakesNoTokenFromIt) {
  EXPECT_EQ(entering(with(1, {parked(1, 0.039), prompt(1, 0.9)})), (Indices{0})) << "four steps";
  EXPECT_EQ(entering(with(1, {parked(1, 0.041), prompt(1, 0.9)})), (Indices{1}));
}

TEST(Paced, SomebodyLeavesForAParkedOneThatIsAboutToBeDryOnly) {
  EXPECT_EQ(leaving(with(0, {parked(2, 0.035), decoding(2, 9)})), (Indices{1}));
  EXPECT_TRUE(leaving(with(0, {parked(2, 0.5), decoding(2, 9)})).empty());
}

TEST(Paced, NobodyPassesTheFirstThatDoesNotFit) {
  EXPECT_EQ(entering(with(3, {prompt(1, 0.3), prompt(4, 0.2), prompt(1, 0.1)})), (Indices{0}));
}

TEST(Paced, PromptsThatCannotEndInTimeGoLast) {
  auto of = with(9, {prompt(1, 0.9), prompt(1, 0.1)});
  EXPECT_EQ(entering(of), (Indices{0, 1}));
  of.pace.prefill_token = Seconds(0.001);
  of.requests[0].to_compute = Tokens(95);
  EXPECT_EQ(entering(of), (Indices{1, 0})) << "0.9 + 0.01 + 0.095 > 1";
  EXPECT_EQ(entering(of, kTtft), (Indices{0, 1}));
  of.b_hbm = Bytes(0);
  of.requests[1] = decoding(2, 9);
  EXPECT_TRUE(leaving(of).empty()) << "and nobody leaves for them";
  EXPECT_EQ(leaving(of, kTtft), (Indices{1}));
}

TEST(Paced, AStricterGoalPassesAnEarlierArrival) {
  auto of = with(9, {prompt(1, 0.3), prompt(1, 0.1)});
  of.requests[0].ttft_slo = Seconds(30);
  EXPECT_EQ(entering(of), (Indices{1, 0}));
}

TEST(Paced, AfterThirtyTwoOthersTheFirstToArriveComesFirst) {
  auto of = with(1, {prompt(1, 5), prompt(1, 0.1), prompt(1, 7)});
  EXPECT_EQ(entering(of), (Indices{1}));
  of.pace.passed = kSkipLimit - 1;
  EXPECT_EQ(entering(of), (Indices{1}));
  of.pace.passed = kSkipLimit;
  EXPECT_EQ(entering(of), (Indices{2}));
  of.b_hbm = Bytes(0);
  EXPECT_TRUE(entering(of).empty()) << "room is kept for it";
}

TEST(Paced, NoMoreStartThanTokensAreMadeFor) {
  // Three have started and are to get 100 tokens a second together.
  auto of = with(3, {prompt(1, 0.1), parked(1, 5), decoding(1, 1), decoding(1, 1)});
  of.pace.tokens_per_s = 156;
  EXPECT_EQ(entering(of), (Indices{1})) << "133 of 156 would leave nothing to save up";
  of.pace.tokens_per_s = 158;
  EXPECT_EQ(entering(of), (Indices{0, 1}));
  of.pace.tokens_per_s = 0;
  EXPECT_EQ(entering(of), (Indices{0, 1})) << "not known yet";
}

TEST(Paced, WithNobodyOutMemoryAloneHasTheSay) {
  auto of = with(3, {prompt(1, 0.1), decoding(1, 1), decoding(1, 1)});
  of.pace.tokens_per_s = 10;
  EXPECT_EQ(entering(of), (Indices{0}));
}

TEST(Paced, NobodyPassesAPromptThatThePaceHoldsBack) {
  auto of = with(2, {prompt(3, 0.3), prompt(1, 0.1), decoding(1, 1)});
  of.pace.tokens_per_s = 10;
  EXPECT_TRUE(entering(of).empty());
}

TEST(Paced, WhoRunsGrowsFirst) {
  auto of = with(2, {prompt(1, 0.1), decoding(3, 1), decoding(3, 2)});
  of.growth = Bytes(2);
  EXPECT_TRUE(entering(of).empty());
  EXPECT_TRUE(leaving(of).empty());
  of.growth = Bytes(3);
  EXPECT_EQ(leaving(of), (Indices{2})) << "the one that can do longest without, covered or not";
  EXPECT_EQ(entering(of), (Indices{0})) << "into what is left of its room";
}

TEST(Paced, TheLastOneIsNotPreemptedForItsOwnGrowth) {
  auto of = with(0, {prompt(9, 0.1), decoding(3, 1)});
  of.growth = Bytes(5);
  EXPECT_TRUE(leaving(of).empty());
}

TEST(Paced, NoMoreMovesThanTheLinkCarriesButForOneWholeRequest) {
  auto of = with(0, {prompt(4, 0.6), decoding(2, 3), decoding(2, 2)});
  of.b_xfer = Bytes(2);
  EXPECT_TRUE(leaving(of).empty());
  of.b_xfer = Bytes(3);
  EXPECT_EQ(leaving(of), (Indices{1, 2})) << "the last may overshoot";
  of.b_xfer = Bytes(0);
  of.requests[0].bytes = Bytes(1);
  EXPECT_TRUE(leaving(of).empty());
}

TEST(Paced, NobodyLeavesForOthersWhereDramHasNoRoom) {
  auto of = with(0, {prompt(2, 0.6), decoding(2, 9)});
  of.dram = DramUse{Bytes(100), Bytes(11)};
  EXPECT_EQ(leaving(of), (Indices{1}));
  of.dram = DramUse{Bytes(100), Bytes(5)};
  EXPECT_TRUE(leaving(of).empty());
  of.requests[0] = parked(2, 0.015);
  EXPECT_TRUE(leaving(of).empty()) << "for one that holds room there neither";
  of.dram = DramUse{Bytes(100), Bytes(6)};
  EXPECT_EQ(leaving(of), (Indices{1}));
  of.requests[1].bytes = Bytes(7);
  EXPECT_TRUE(leaving(of).empty()) << "as much as it holds must fit";
}

/// As `made`, but its client shows tokens when they come: the last one did `ago`, and a second is
/// too long.
RotationRequest seen_at_once(RotationRequest made, double ago) {
  made.t_last = kNow - Seconds(ago);
  made.gap = Seconds(1);
  return made;
}

TEST(Paced, NobodyStaysOutLongerThanItsLongestGapWhateverItHasSavedUp) {
  const RotationRequest long_out = parked(2, 60);
  const RotationRequest here = seen_at_once(decoding(2, 9), 0.01);
  EXPECT_TRUE(leaving(with(0, {seen_at_once(long_out, 0.70), here})).empty());
  EXPECT_EQ(leaving(with(0, {seen_at_once(long_out, 0.72), here})), (Indices{1}))
      << "four steps before three quarters of its gap";
  EXPECT_EQ(entering(with(1, {seen_at_once(parked(1, 60), 0.72), prompt(1, 0.9)})), (Indices{0}));
  EXPECT_TRUE(leaving(with(0, {long_out, decoding(2, 9)})).empty()) << "its client paces";
}

TEST(Paced, ForAGapThatIsNearlyOverAnybodyLeavesWhoIsNotDueBack) {
  const RotationRequest out = seen_at_once(parked(2, -3), 0.9);
  const RotationRequest dry = seen_at_once(decoding(2, -1), 0.01);
  EXPECT_EQ(leaving(with(0, {out, dry})), (Indices{1}));
  EXPECT_TRUE(leaving(with(0, {prompt(2, 0.9), dry})).empty()) << "not for a prompt";
  EXPECT_TRUE(leaving(with(0, {out, seen_at_once(decoding(2, -1), 0.73)})).empty());
}

TEST(Paced, WhereOnlyGapsAreSeenTheRestOfTheAnswerMakesUpForAWait) {
  auto of = with(0, {prompt(2, 0.6), seen_at_once(decoding(2, 0.05), 0.01)});
  EXPECT_TRUE(leaving(of).empty());
  of.requests[1].output_tokens = Tokens(100);
  EXPECT_EQ(leaving(of), (Indices{1}));
  of.requests[1].gap.reset();
  EXPECT_TRUE(leaving(of).empty()) << "its client shows a token each S_B";
}

TEST(Paced, NoMoreStartThanCanComeBackWithinTheirGapsForSixteenSteps) {
  RotationRequest next = prompt(1, 0.1);
  next.gap = Seconds(1);
  auto of = with(2, {next, seen_at_once(parked(12, 5), 0.1), seen_at_once(decoding(0, 1), 0.01)});
  EXPECT_EQ(entering(of), (Indices{0})) << "12 x 0.16 s fit into 2 x 1 s";
  of.requests[1].bytes = Bytes(13);
  EXPECT_TRUE(entering(of).empty());
  of.requests[0].gap.reset();
  EXPECT_EQ(entering(of), (Indices{0})) << "its client paces";
}

TEST(Paced, AVictimIsNoNewcomer) {
  const auto of = with(0, {prompt(2, 0.6), decoding(2, 9), decoding(2, 8)});
  for (const std::uint32_t victim : leaving(of)) {
    for (const std::uint32_t entry : entering(of)) EXPECT_NE(victim, entry);
  }
}

}  // namespace
}  // namespace kvd::planner::testing
