#include <gtest/gtest.h>

#include <limits>

#include "planner/baselines/admission_baselines.hpp"
#include "planner/baselines/all_policies.hpp"
#include "planner/baselines/guarded.hpp"
#include "planner/policy/admission/admission_guards.hpp"
#include "planner/policy/admission/layerkv.hpp"

namespace kvd::planner {
namespace {

AdmissionSnapshot example() {
  AdmissionSnapshot snapshot;
  snapshot.costs = {32, 1, 1, 1e14, {2e10}, 8e9, 4096, 8, 128, 2};
  snapshot.decoding = {{Seconds(0.2), 100, Seconds(24), 50, Seconds(0.1)}};
  snapshot.queue = {{Tokens(4096)}, {Tokens(16384)}};
  return snapshot;
}

const LayerKvPolicy kSut;
const LayerKvLiteralPolicy kLiteral;

TEST(LayerKv, AdmitsThePrefixThatTheLeastAllowanceCovers) {
  const auto decision = *kSut.decide(example());
  EXPECT_EQ(decision.admitted, 1u);
  EXPECT_NEAR(decision.allow_prefill->count(), 1, 1e-9);
  EXPECT_NEAR(decision.prefill[0].count(), 0.65673438953472, 1e-12);
  EXPECT_EQ(decision.retained_layers, (std::vector<std::int32_t>{0, 0}));
  EXPECT_NEAR(decision.offload[1].count(), 0.1073741824, 1e-12);
}

TEST(LayerKv, TheComparisonIsStrict) {
  auto snapshot = example();
  snapshot.costs = {1, 1, 1, 1, {1}, 0.5, 0, 1, 1, 2};  // a prefill takes as long as it has tokens
  snapshot.decoding = {{Seconds(2), 0, Seconds(0), 1, Seconds(0)}};
  snapshot.queue.assign(3, {Tokens(1)});
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 1u) << "two would take exactly what is allowed";
}

TEST(LayerKv, NobodyOvertakesAPromptThatDoesNotFit) {
  auto snapshot = example();
  snapshot.queue = {{Tokens(16384)}, {Tokens(16)}};
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 0u);
}

TEST(LayerKv, AHopelessDecoderBlocksOnlyTheLiteralRule) {
  auto snapshot = example();
  snapshot.decoding.push_back({Seconds(0.1), 10, Seconds(5), 1, Seconds(0.1)});
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 1u);
  EXPECT_EQ(kLiteral.decide(snapshot)->admitted, 0u);
  snapshot.decoding.erase(snapshot.decoding.begin());
  EXPECT_FALSE(kSut.decide(snapshot)->allow_prefill);
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 2u);
  EXPECT_LT(*kLiteral.decide(snapshot)->allow_prefill, Seconds(0));
}

TEST(LayerKv, ASlowLinkKeepsAsFewLayersAsHideBehindPrefill) {
  auto snapshot = example();
  snapshot.costs.link = {5e8};
  const auto decision = *kSut.decide(snapshot);
  EXPECT_EQ(decision.retained_layers, (std::vector<std::int32_t>{13, 13}));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_LE(decision.offload[i], decision.prefill[i]);
    EXPECT_GT(snapshot.costs.offload(snapshot.queue[i].tokens, 12), decision.prefill[i]);
  }
}

TEST(LayerKv, RefusesRatesThatAreNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {0.0, -1.0, nan}) {
    auto snapshot = example();
    snapshot.costs.flops_per_s = bad;
    EXPECT_EQ(kSut.decide(snapshot).error().code, ErrorCode::kInvalidArgument);
    snapshot = example();
    snapshot.costs.link = {bad};
    EXPECT_FALSE(kSut.decide(snapshot).ok());
  }
  auto snapshot = example();
  snapshot.decoding[0].n_future = 0;
  EXPECT_FALSE(kSut.decide(snapshot).ok());
  snapshot = example();
  snapshot.queue[0].tokens = Tokens(0);
  EXPECT_FALSE(kSut.decide(snapshot).ok());
}

// Prefill takes one second a token, with one layer, so retaining it gains nothing.
AdmissionSnapshot plain(std::int64_t total_blocks, std::int64_t free_blocks) {
  AdmissionSnapshot snapshot;
  snapshot.costs = {1, 1, 1, 1, {1e9}, 0.5, 0, 1, 1, 2};
  snapshot.memory = AdmissionMemory{Blocks(total_blocks), Blocks(free_blocks), Tokens(1), 4, 0};
  return snapshot;
}

DecodingRequest decoding(std::int64_t n_past, std::int64_t n_future) {
  return {Seconds(1e6), n_past, Seconds(0), n_future, Seconds(0)};
}

TEST(LayerKvMemory, TheForecastCountsWhatGrowsAndWhatEnds) {
  auto snapshot = plain(100, 20);
  snapshot.decoding = {decoding(5, 2), decoding(8, 100)};
  // Stage 1 both grow; at 2 the first ends with its 5 + 1 blocks, and only the other grows on.
  EXPECT_EQ(kSut.decide(snapshot)->forecast,
            (std::vector<Blocks>{Blocks(20), Blocks(18), Blocks(23), Blocks(22), Blocks(21)}));
}

TEST(LayerKvMemory, HalfTheRetainedLayersOfTheLatestGoFirstThenAll) {
  auto snapshot = plain(1000, 2);
  snapshot.costs.layers = 4;
  snapshot.memory->threshold = 0.03;
  snapshot.memory->stages = 0;
  snapshot.decoding = {decoding(10, 9), decoding(10, 9), decoding(10, 9)};
  const auto offloaded = [&] { return kSut.decide(snapshot)->offload_layers; };
  using Layers = std::vector<std::int32_t>;
  EXPECT_EQ(offloaded(), (Layers{0, 2, 2})) << "28 are missing, two layers of the latest free 20";
  snapshot.memory->threshold = 0.08;
  EXPECT_EQ(offloaded(), (Layers{2, 2, 4})) << "78: half of each is 60, then the rest";
  snapshot.decoding[2].retained_layers = 1;
  snapshot.memory->threshold = 0.01;
  EXPECT_EQ(offloaded(), (Layers{0, 0, 1}));
  snapshot.memory->threshold = 0;
  EXPECT_EQ(offloaded(), (Layers{0, 0, 0}));
}

TEST(LayerKvMemory, APromptNeedsRoomForWhatItRetainsAndOneLayerAtLeast) {
  auto snapshot = plain(100, 10);
  snapshot.queue = {{Tokens(6)}, {Tokens(4)}, {Tokens(1)}};
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 2u);
  snapshot.decoding = {decoding(5, 100)};
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 3u) << "its layer can make room";
  snapshot.queue = {{Tokens(101)}};
  const auto refused = kSut.decide(snapshot);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("queue[0]"), std::string::npos);
}

TEST(LayerKvMemory, ABusyLinkRetainsMoreLayers) {
  auto snapshot = example();
  snapshot.costs.link = {5e8};
  const auto idle = kSut.decide(snapshot)->retained_layers[0];
  snapshot.costs.link_busy = 0.5;
  EXPECT_GT(kSut.decide(snapshot)->retained_layers[0], idle);
  snapshot.costs.link_busy = 1;
  EXPECT_FALSE(kSut.decide(snapshot).ok());
}

TEST(StepGuard, AsManyEnterAsTheNextStepsCanPrefill) {
  auto snapshot = plain(1000, 1000);
  // A step of 50 leaves 40 of 90; a prompt of 30 tokens takes 30.
  snapshot.guard = StepGuard{Seconds(50), Seconds(0), Seconds(100)};
  snapshot.decoding = {decoding(0, 100)};
  snapshot.queue.assign(5, {Tokens(30)});
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 3u) << "60 of 80 are less, 90 are not";
  snapshot.queue[0] = {Tokens(100), Tokens(40), 10, true};
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 2u) << "the first has 60 to go";
  snapshot.queue[0] = {Tokens(500)};
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 1u) << "a large one enters chunk by chunk";
  snapshot.decoding[0].prompt = Tokens(500);
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 1u) << "prefill that is over counts no more";
}

TEST(StepGuard, NobodyEntersAStepThatIsTooLongForOneMore) {
  auto snapshot = plain(1000, 1000);
  snapshot.guard = StepGuard{Seconds(84), Seconds(5), Seconds(100)};
  snapshot.decoding = {decoding(0, 100)};
  snapshot.queue.assign(2, {Tokens(3)});
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 2u) << "89 of 90";
  snapshot.guard->step = Seconds(86);
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 0u);
  snapshot.queue[0].begun = true;
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 1u) << "a prefill once begun goes on";
  snapshot.decoding[0].tbt_slo = Seconds(200);
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 2u) << "its own goal is looser";
  snapshot.decoding.clear();
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 2u) << "with nobody inside one may always enter";
}

TEST(StepGuard, AGoalThatNoBatchCanMeetBoundsNothing) {
  auto snapshot = plain(1000, 1000);
  snapshot.guard = StepGuard{Seconds(96), Seconds(5), Seconds(100)};
  snapshot.decoding = {decoding(0, 1000)};
  snapshot.queue.assign(3, {Tokens(300)});
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 3u) << "91 are more than 90 with nobody else";
  EXPECT_FALSE(kSut.decide(snapshot)->chunk);
  snapshot.decoding.push_back(decoding(0, 1000));
  EXPECT_TRUE(kSut.decide(snapshot)->chunk) << "86 with the other one gone";
}

TEST(PrefillChunk, TheSmallestDepositBoundsIt) {
  auto snapshot = plain(1000, 1000);
  snapshot.guard = StepGuard{Seconds(20), Seconds(0), Seconds(100)};
  snapshot.decoding = {decoding(0, 10), decoding(0, 10)};
  snapshot.queue = {{Tokens(50), Tokens(0), 10}, {Tokens(500), Tokens(0), 1000}};
  const auto chunk = [&] { return kSut.decide(snapshot)->chunk; };
  EXPECT_EQ(chunk(), Tokens(70)) << "0.9 x 100 less 20: the first prompt and 20 of the second";
  snapshot.decoding[0].deposit = 3;
  EXPECT_EQ(chunk(), Tokens(70)) << "the other has none";
  snapshot.decoding[1].deposit = 2;
  EXPECT_EQ(chunk(), Tokens(160)) << "two intervals";
  snapshot.decoding[1].tbt_slo = Seconds(50);
  EXPECT_EQ(chunk(), Tokens(70)) << "of shorter ones";
  snapshot.decoding[1].tbt_slo = Seconds(20);
  EXPECT_EQ(chunk(), Tokens(250)) << "it is late whatever the chunk";
  snapshot.guard = StepGuard{Seconds(90), Seconds(1), Seconds(100)};
  snapshot.decoding[0].deposit = snapshot.decoding[1].deposit = 0;
  snapshot.queue[0].begun = true;
  EXPECT_EQ(chunk(), Tokens(16)) << "enough that what has begun ends";
  snapshot.decoding.clear();
  EXPECT_FALSE(chunk()) << "nobody waits for the step";
}

TEST(PrefillChunk, AFewWithATightGoalDoNotKeepManyPromptsFromBeingInTime) {
  auto snapshot = plain(1000, 1000);
  snapshot.guard = StepGuard{Seconds(52), Seconds(0), Seconds(100)};
  snapshot.decoding.assign(10, decoding(0, 10));
  snapshot.decoding[3].tbt_slo = Seconds(60);
  snapshot.queue = {{Tokens(500), Tokens(100), 10, true}};
  const auto chunk = [&] { return kSut.decide(snapshot)->chunk; };
  EXPECT_EQ(chunk(), Tokens(16)) << "0.9 x 60 less 52, for nobody waits";
  snapshot.queue.push_back({Tokens(500), Tokens(0), 10});
  EXPECT_EQ(chunk(), Tokens(38)) << "0.9 x 100 less 52";
  snapshot.decoding[3].n_future = 10;
  snapshot.queue[1].spare = Seconds(601);
  EXPECT_EQ(chunk(), Tokens(16)) << "the one with 60 has ended after 600";
  snapshot.queue[1].spare = Seconds(600);
  EXPECT_EQ(chunk(), Tokens(38)) << "it would be late";
  snapshot.guard->turns = 2;
  EXPECT_EQ(chunk(), Tokens(19)) << "the other engine's prefill makes the step longer, too";
  snapshot.decoding[4].tbt_slo = Seconds(60);
  EXPECT_EQ(chunk(), Tokens(16)) << "two would be late for one";
  snapshot.decoding[4].tbt_slo.reset();
  snapshot.guard = StepGuard{Seconds(48), Seconds(0), Seconds(100)};
  EXPECT_EQ(chunk(), Tokens(42)) << "0.9 x 42 / 90 are more than three times 6 / 54";
  snapshot.guard->step = Seconds(46);
  EXPECT_EQ(chunk(), Tokens(16)) << "0.9 x 44 / 90 are no more than three times 8 / 54";
}

TEST(PrefillChunk, OneThatHasTimeMakesNoStepTooLongForAnybody) {
  auto snapshot = plain(1000, 1000);
  snapshot.guard = StepGuard{Seconds(80), Seconds(5), Seconds(100)};
  snapshot.decoding.assign(2, decoding(0, 10));
  snapshot.decoding[0].tbt_slo = Seconds(1000);
  snapshot.decoding[1].n_future = 10;
  snapshot.queue = {{Tokens(5), Tokens(0), 10}};
  snapshot.queue[0].spare = Seconds(1001);
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 1u) << "85 of 90";
  snapshot.guard->step = Seconds(86);
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 0u) << "91 of 90";
  snapshot.queue[0].spare = Seconds(1000);
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 1u) << "91 of 900";
}

// A prefill takes as long as it has tokens; a decode step 20 of 100 that are allowed.
TEST(PrefillChunk, IsAsLongAsSavesPromptsThatShortOnesMakeLate) {
  auto snapshot = plain(10'000, 10'000);
  snapshot.guard = StepGuard{Seconds(20), Seconds(0), Seconds(100)};
  snapshot.decoding = {{Seconds(100), 1, Seconds(0), 20, Seconds(20)}};
  snapshot.queue.assign(2, {Tokens(300)});
  const auto chunk = [&](double left) {
    snapshot.queue[1].left = Seconds(left);
    return kSut.decide(snapshot)->chunk;
  };
  EXPECT_EQ(chunk(772), Tokens(70)) << "600 in steps of 90 that prefill 70 each take 771";
  EXPECT_EQ(chunk(770), Tokens(600));
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 2u);
  EXPECT_EQ(chunk(619), Tokens(70)) << "with the step it takes 620: late whatever comes";
  snapshot.guard->per_request = Seconds(36);
  EXPECT_EQ(chunk(770), Tokens(70)) << "with both a step would take 92 of 90";
  snapshot.guard->per_request = Seconds(0);
  snapshot.decoding[0].n_future = 5;
  EXPECT_EQ(chunk(770), Tokens(70)) << "its mean would be late: 6 x 100 less 5 x 20 are 500";
  snapshot.decoding[0].n_sure = 20;
  EXPECT_EQ(chunk(770), Tokens(600)) << "nothing speaks against a longer answer";
  snapshot.decoding.push_back({Seconds(100), 1, Seconds(500), 1, Seconds(20)});
  EXPECT_EQ(chunk(770), Tokens(600)) << "the mean of that one is late as it is";
}

TEST(PrefillCosts, TokensWithinIsTheLastThatFits) {
  const auto costs = example().costs;
  for (const std::int64_t done : {0, 1000, 100'000}) {
    for (const double time : {0.0, 0.01, 0.3, 100.0}) {
      const auto most = costs.tokens_within(Seconds(time), Tokens(done), Tokens(50'000));
      EXPECT_LE(costs.prefill_part(Tokens(done), most), Seconds(time));
      if (most == Tokens(50'000)) continue;
      EXPECT_GT(costs.prefill_part(Tokens(done), most + Tokens(1)), Seconds(time));
    }
  }
}

AdmissionDecision decide(std::string_view policy, const AdmissionSnapshot& snapshot) {
  return *(*all_policies().admission(policy))->decide(snapshot);
}

TEST(AdmissionBaselines, NoneAdmitsAllWhole) {
  EXPECT_EQ(decide("none", example()).admitted, 2u);
  EXPECT_EQ(decide("none", example()).retained_layers, (std::vector<std::int32_t>{32, 32}));
}

TEST(AdmissionBaselines, WholeRequestNeedsAllLayersFreeAndKeepsAHundredth) {
  auto snapshot = plain(200, 52);
  snapshot.costs.layers = 2;
  snapshot.queue = {{Tokens(20)}, {Tokens(6)}, {Tokens(1)}};
  EXPECT_EQ(decide("whole_request", snapshot).admitted, 1u) << "40 and 12 of 52 less 2";
  snapshot.memory->free = Blocks(54);
  EXPECT_EQ(decide("whole_request", snapshot).admitted, 2u);
  snapshot.queue = {{Tokens(100)}};
  EXPECT_FALSE((*all_policies().admission("whole_request"))->decide(snapshot).ok()) << "never fits";
  snapshot.memory.reset();
  EXPECT_FALSE((*all_policies().admission("whole_request"))->decide(snapshot).ok());
}

TEST(AdmissionBaselines, KeepAGuardOnlyWhereTheirNameSaysSo) {
  auto snapshot = plain(10'000, 10'000);
  snapshot.decoding = {decoding(4, 8)};
  snapshot.queue = {{Tokens(10), Tokens(0), 5}, {Tokens(10), Tokens(0), 5}};
  snapshot.guard = StepGuard{Seconds(1e6), Seconds(2e5), Seconds(1e9)};
  for (const char* policy : {"none+guards", "whole_request+guards", "past_future+guards"}) {
    snapshot.guard->tbt_slo = Seconds(1e9);
    EXPECT_EQ(decide(policy, snapshot).admitted, 2u) << policy;
    EXPECT_TRUE(decide(policy, snapshot).chunk) << policy;
    snapshot.guard->tbt_slo = Seconds(1e6);
    EXPECT_EQ(decide(policy, snapshot).admitted, 0u) << policy << ": the step is too long already";
    snapshot.queue.front().begun = true;
    EXPECT_EQ(decide(policy, snapshot).admitted, 1u) << policy << ": what has begun goes on";
    EXPECT_EQ(decide(policy, snapshot).chunk, kLeastChunk) << policy;
    snapshot.queue.front().begun = false;
    EXPECT_EQ((*all_policies().admission(policy))->name(), policy);
  }
  EXPECT_EQ(decide("none", snapshot).admitted, 2u);
  EXPECT_FALSE(decide("none", snapshot).chunk);
}

TEST(AdmissionBaselines, PastFutureLooksAtTheWorstMomentToCome) {
  auto snapshot = plain(30, 0);
  snapshot.decoding = {decoding(4, 8)};
  snapshot.queue = {{Tokens(10), Tokens(0), 5}, {Tokens(1), Tokens(0), 1}};
  // Alone 4 + 8 = 12; with the first max(12, 14 + 2 * 5) = 24; with the second 15 + 3 = 18.
  EXPECT_EQ(decide("past_future", snapshot).admitted, 2u);
  snapshot.memory->total = Blocks(24);
  EXPECT_EQ(decide("past_future", snapshot).admitted, 0u) << "24 is not below 24";
  snapshot.memory->total = Blocks(15);
  EXPECT_FALSE((*all_policies().admission("past_future"))->decide(snapshot).ok());
}

}  // namespace
}  // namespace kvd::planner
