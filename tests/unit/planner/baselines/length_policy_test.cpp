#include "planner/baselines/length_policy.hpp"

#include <gtest/gtest.h>

#include "tests/unit/planner/policy/requests.hpp"

namespace kvd::planner::testing {
namespace {

RotationRequest of_length(RotationRequest request, std::int64_t output, std::int64_t made = 0) {
  request.output_tokens = Tokens(output);
  request.tokens_made = Tokens(made);
  return request;
}

LengthPolicy srtf() { return {"srtf", LengthRule::kSrtf}; }
LengthPolicy sjf() { return {"sjf_oracle", LengthRule::kSjfOracle}; }
LengthPolicy ltr() { return {"ltr", LengthRule::kLtr}; }

TEST(LengthPolicies, SrtfCountsWhatIsStillToComeAndTheOthersTheWholeAnswer) {
  const auto of = snapshot(2, 9, {of_length(waiting(2, 1), 50), of_length(rotary(2, 2), 100, 90)});
  EXPECT_EQ(srtf().decide(of, kNow, {}).prioritized, (Indices{1}));
  EXPECT_EQ(sjf().decide(of, kNow, {}).prioritized, (Indices{0}));
  EXPECT_EQ(ltr().decide(of, kNow, {}).prioritized, (Indices{0}));
}

TEST(LengthPolicies, UnknownLengthsGoLastAndByArrivalAmongThemselves) {
  const auto of = snapshot(4, 9, {waiting(2, 2), waiting(2, 1), of_length(waiting(2, 9), 5000)});
  EXPECT_EQ(srtf().decide(of, kNow, {}).prioritized, (Indices{2, 1}));
}

TEST(LengthPolicies, TheFirstThatDoesNotFitStopsTheRest) {
  const auto of = snapshot(3, 9, {of_length(waiting(4, 1), 5), of_length(waiting(1, 1), 9)});
  EXPECT_TRUE(srtf().decide(of, kNow, {}).prioritized.empty());
}

TEST(LengthPolicies, OnlyLtrTakesFromRunningRequestsAndOnlyFromLongerOnes) {
  auto of = snapshot(0, 9,
                     {of_length(waiting(2, 1), 20), of_length(running(2, 1), 10),
                      of_length(running(2, 2), 30), of_length(running(2, 3), 40)});
  EXPECT_TRUE(srtf().decide(of, kNow, {}).preempted.empty());
  EXPECT_TRUE(sjf().decide(of, kNow, {}).preempted.empty());
  EXPECT_EQ(ltr().decide(of, kNow, {}).preempted, (Indices{3}));
  EXPECT_EQ(ltr().decide(of, kNow, {}).prioritized, (Indices{0}));
  of.requests[0].output_tokens = Tokens(40);
  EXPECT_TRUE(ltr().decide(of, kNow, {}).preempted.empty()) << "equal is not longer";
}

TEST(LengthPolicies, LtrEvictsNobodyWhereThatWouldNotSuffice) {
  auto of = snapshot(
      0, 3,
      {of_length(waiting(4, 1), 20), of_length(running(2, 1), 50), of_length(running(2, 2), 60)});
  EXPECT_TRUE(ltr().decide(of, kNow, {}).preempted.empty()) << "4 exceed one iteration's 3";
  of.b_xfer = Bytes(4);
  EXPECT_EQ(ltr().decide(of, kNow, {}).preempted, (Indices{2, 1}));
  of.dram = DramUse{Bytes(100), Bytes(20)};
  EXPECT_EQ(ltr().decide(of, kNow, {}).preempted, (Indices{2, 1}));
  of.dram->free = Bytes(5);
  EXPECT_TRUE(ltr().decide(of, kNow, {}).preempted.empty()) << "95 % of DRAM in use";
}

TEST(LengthPolicies, GrowthMakesTheLongestLeave) {
  auto of = snapshot(1, 9, {of_length(running(2, 1), 50), of_length(running(2, 2), 60)});
  of.growth = Bytes(2);
  EXPECT_EQ(srtf().decide(of, kNow, {}).preempted, (Indices{1}));
}

TEST(LengthPolicies, OnePassedOverTooOftenIsPromotedUnlessThePaperIsFollowed) {
  auto of = snapshot(2, 9, {of_length(waiting(2, 1), 5), of_length(waiting(2, 9), 500)});
  of.requests[1].skips = kSkipLimit;
  EXPECT_EQ(sjf().decide(of, kNow, {}).prioritized, (Indices{1}));
  EXPECT_EQ(sjf().decide(of, kNow, {.paper = true}).prioritized, (Indices{0}));
  of.b_hbm = Bytes(0);
  of.requests.push_back(of_length(running(2, 3), 1));
  EXPECT_EQ(ltr().decide(of, kNow, {}).prioritized, (Indices{1})) << "ahead of any length";
}

}  // namespace
}  // namespace kvd::planner::testing
