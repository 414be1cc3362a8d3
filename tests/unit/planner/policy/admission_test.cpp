#include "planner/policy/admission.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace kvd::planner {
namespace {

AdmissionSnapshot example() {
  AdmissionSnapshot snapshot;
  snapshot.costs = {32, 1, 1, 1e14, {2e10}, 8e9, 4096, 8, 128, 2};
  snapshot.decoding = {{Seconds(0.2), 100, Seconds(24), 50, Seconds(0.1)}};
  snapshot.queue = {Tokens(4096), Tokens(16384)};
  return snapshot;
}

const LayerKvPolicy kSut(LayerKvPolicy::Hopeless::kLeftOut);
const LayerKvPolicy kLiteral(LayerKvPolicy::Hopeless::kCounts);

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
  snapshot.queue = {Tokens(1), Tokens(1), Tokens(1)};
  EXPECT_EQ(kSut.decide(snapshot)->admitted, 1u) << "two would take exactly what is allowed";
}

TEST(LayerKv, NobodyOvertakesAPromptThatDoesNotFit) {
  auto snapshot = example();
  snapshot.queue = {Tokens(16384), Tokens(16)};
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
    EXPECT_GT(snapshot.costs.offload(snapshot.queue[i], 12), decision.prefill[i]);
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
  snapshot.queue[0] = Tokens(0);
  EXPECT_FALSE(kSut.decide(snapshot).ok());
}

TEST(AdmitAll, AdmitsAllWhole) {
  const auto decision = *AdmitAllPolicy().decide(example());
  EXPECT_EQ(decision.admitted, 2u);
  EXPECT_EQ(decision.retained_layers, (std::vector<std::int32_t>{32, 32}));
}

}  // namespace
}  // namespace kvd::planner
