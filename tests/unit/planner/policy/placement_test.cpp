#include "planner/policy/placement/placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "ipc/vocabulary/deposit.hpp"
#include "planner/baselines/all_policies.hpp"
#include "tests/unit/planner/seed.hpp"

namespace kvd::planner {
namespace {

const ManualClock kNoTime;

PlacementSnapshot example(std::int64_t blocks1 = 3) {
  PlacementSnapshot snapshot;
  snapshot.model = {std::vector<Seconds>(9, Seconds(1)), Seconds(1.0 / 3), Seconds(0)};
  snapshot.capacity = Blocks(70);
  snapshot.requests.resize(2);
  snapshot.requests[0].blocks = Blocks(blocks1);
  snapshot.requests[1].blocks = Blocks(6);
  return snapshot;
}

PlacementDecision decide(const PlacementSnapshot& snapshot, PlacementConfig config = {},
                         std::string_view policy = "orbitflow") {
  config.tolerance = 0;
  auto decision = (*all_policies().placement(policy))->decide(snapshot, config, kNoTime);
  EXPECT_TRUE(decision.ok());
  return *decision;
}

std::vector<std::int32_t> distances(const PlacementDecision& decision) {
  std::vector<std::int32_t> k;
  for (const auto& candidate : decision.placement) k.push_back(candidate.distance.value_or(-1));
  return k;
}

using Distances = std::vector<std::int32_t>;

TEST(OrbitFlow, PlacesTheExampleOfTheFigure) {
  const auto decision = decide(example());
  EXPECT_TRUE(decision.feasible);
  EXPECT_TRUE(decision.proved);
  EXPECT_EQ(distances(decision), (Distances{0, 3}));
  EXPECT_NEAR(decision.latency.count(), 9, 1e-9);
  EXPECT_EQ(decision.memory.resident, Blocks(63));
  EXPECT_EQ(decision.memory.staging_strict, Blocks(6));
  EXPECT_EQ(decision.expires_in, 1000);
}

TEST(OrbitFlow, TheEvenSetIsNeverSlower) {
  auto snapshot = example(4);
  EXPECT_NEAR(decide(snapshot).latency.count(), 13, 1e-9);
  snapshot.candidates = CandidateSet::kDistancesAndEven;
  EXPECT_NEAR(decide(snapshot).latency.count(), 9 + 8.0 / 3, 1e-9);
}

TEST(OrbitFlow, ABatchThatCannotFitNamesWhomToPause) {
  auto snapshot = example();
  snapshot.capacity = Blocks(8);
  const auto decision = decide(snapshot);
  EXPECT_FALSE(decision.feasible);
  EXPECT_EQ(decision.reason, InfeasibleReason::kMemory);
  EXPECT_TRUE(decision.proved);
  EXPECT_EQ(decision.victim, 1u);
  snapshot.requests[0].deposit = 28;
  EXPECT_EQ(decide(snapshot).victim, 0u) << "3 * 9 + 28 against 6 * 9";
  snapshot.requests.resize(1);
  snapshot.capacity = Blocks(1);
  EXPECT_FALSE(decide(snapshot).victim) << "the last one is never paused";
}

TEST(OrbitFlow, AnSloBeyondReachIsInfeasibleAndProved) {
  auto snapshot = example(4);
  for (auto& request : snapshot.requests) request.slo = Seconds(12);
  const auto decision = decide(snapshot);
  EXPECT_FALSE(decision.feasible);
  EXPECT_EQ(decision.reason, InfeasibleReason::kSlo);
  EXPECT_TRUE(decision.proved);
  EXPECT_NEAR(decision.violations_per_step, 2, 1e-9);
  snapshot.requests[0].deposit = 1000;
  EXPECT_TRUE(decide(snapshot).feasible) << "a deposit covers one of the two";
}

TEST(OrbitFlow, ThePlanExpiresWhenGrowthNoLongerFits) {
  auto snapshot = example();
  snapshot.requests[0].tokens = Tokens(48);
  PlacementConfig config;
  config.window_min = 1;
  const auto decision = decide(snapshot, config);
  ASSERT_TRUE(decision.feasible);
  EXPECT_EQ(decision.memory.resident + decision.memory.staging_strict, Blocks(70));
  EXPECT_EQ(decision.expires_in, 16) << "the next block comes with the 17th token";
}

TEST(OrbitFlow, TheWindowEndsWhereLateTokensExceedAlpha) {
  auto snapshot = example(4);
  snapshot.requests[0].slo = Seconds(12.5);
  snapshot.requests[0].deposit = 10;
  PlacementConfig config;
  config.alpha = 0.5;
  // f = 1 - 10 / (D * (13 / 12.5 - 1)) reaches 0.5 at D = 500.
  EXPECT_EQ(decide(snapshot, config).expires_in, 500);
}

TEST(Placement, NodesAloneMakeAPureFunction) {
  std::mt19937_64 random(testing::test_seed());
  for (int round = 0; round < 20; ++round) {
    auto snapshot = example();
    snapshot.candidates = CandidateSet::kDistancesAndEven;
    for (int i = 0; i < 6; ++i) {
      snapshot.requests.emplace_back().blocks = Blocks(static_cast<std::int64_t>(random() % 9));
    }
    PlacementConfig config;
    config.budget_nodes = 6;
    ASSERT_EQ(distances(decide(snapshot, config)), distances(decide(snapshot, config)));
  }
}

// A token made later than the deposit allows is late; played token by token.
double late_share(Seconds slo, Seconds latency, std::int64_t deposit, std::int64_t steps) {
  TokenDeposit<Seconds> played(slo, Seconds(0));
  const auto ignore = [](Seconds) {};
  for (std::int64_t i = 0; i < deposit; ++i) played.generated(Seconds(0), ignore);
  Seconds at{0};
  for (std::int64_t i = 0; i < steps; ++i) played.generated(at += latency, ignore);
  return static_cast<double>(played.violations()) / static_cast<double>(steps);
}

TEST(Violation, LateTokensAreWhatATokenByTokenPlayCounts) {
  SCOPED_TRACE(::testing::Message() << "seed " << testing::test_seed());
  std::mt19937_64 random(testing::test_seed());
  std::uniform_real_distribution<double> ratio(0.5, 3);
  for (int round = 0; round < 2000; ++round) {
    const Seconds slo(1);
    const Seconds latency(ratio(random));
    const auto deposit = static_cast<std::int64_t>(random() % 200);
    const auto steps = 1 + static_cast<std::int64_t>(random() % 500);
    const double model = violation(ViolationModel::kLateTokens, slo, latency, deposit, steps);
    // The closed form counts in fractions of tokens.
    ASSERT_NEAR(model, late_share(slo, latency, deposit, steps), 2.0 / static_cast<double>(steps))
        << latency.count() << " " << deposit << " " << steps;
  }
}

TEST(Violation, BothModelsGrowWithTheStepTime) {
  for (const auto model : {ViolationModel::kLateTokens, ViolationModel::kInterval}) {
    double before = 0;
    for (double t = 0.5; t < 4; t += 0.01) {
      const double now = violation(model, Seconds(1), Seconds(t), 20, 64);
      EXPECT_GE(now, before);
      before = now;
    }
  }
}

class UniformBaseline : public ::testing::TestWithParam<std::string_view> {};

TEST_P(UniformBaseline, GivesAllRequestsOneDistanceAndIsNeverFasterThanOrbitFlow) {
  SCOPED_TRACE(::testing::Message() << "seed " << testing::test_seed());
  std::mt19937_64 random(testing::test_seed());
  for (int round = 0; round < 60; ++round) {
    auto snapshot = example(static_cast<std::int64_t>(random() % 7));
    snapshot.candidates = CandidateSet::kDistancesAndEven;
    snapshot.capacity = Blocks(static_cast<std::int64_t>(20 + random() % 90));
    const auto sut = decide(snapshot, {}, GetParam());
    ASSERT_EQ(sut.placement[0].offloaded, sut.placement[1].offloaded);
    if (!sut.feasible) continue;
    const auto best = decide(snapshot);
    ASSERT_TRUE(best.feasible);
    ASSERT_LE(sut.memory.resident + sut.memory.staging_strict, snapshot.capacity);
  }
}

INSTANTIATE_TEST_SUITE_P(Built, UniformBaseline,
                         ::testing::Values("none", "deepspeed", "flexgen", "flexgen_plus",
                                           "dynamic_heuristic", "slo_aware", "batch_uniform"),
                         [](const auto& of) { return std::string(of.param); });

TEST(UniformBaselines, TheirDistancesForTheExample) {
  const auto k = [](std::string_view policy, std::int64_t capacity) {
    auto snapshot = example();
    snapshot.capacity = Blocks(capacity);
    return distances(decide(snapshot, {}, policy))[0];
  };
  EXPECT_EQ(k("none", 70), 0);
  EXPECT_EQ(k("deepspeed", 70), 1);
  EXPECT_EQ(k("flexgen", 70), 2);
  EXPECT_EQ(k("flexgen_plus", 70), 3) << "70 / 11 = 6 layers stay, 3 of 9 go";
  EXPECT_EQ(k("dynamic_heuristic", 70), 2) << "70 / 13 = 5 layers stay, 4 of 9 go";
  EXPECT_EQ(k("dynamic_heuristic", 117), 0);
  EXPECT_EQ(k("slo_aware", 70), 2) << "the link is slower than compute";
  EXPECT_EQ(k("batch_uniform", 70), 3);
}

TEST(PlacementCheck, RefusesWhatMakesNoSense) {
  const auto refused = [](const PlacementSnapshot& snapshot, const PlacementConfig& config) {
    const auto status = check(snapshot, config);
    return status.code() == ErrorCode::kInvalidArgument;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(refused(example(), {}));
  auto snapshot = example();
  snapshot.requests.clear();
  EXPECT_TRUE(refused(snapshot, {}));
  snapshot = example(-1);
  EXPECT_TRUE(refused(snapshot, {}));
  snapshot = example();
  snapshot.requests[0].slo = Seconds(nan);
  EXPECT_TRUE(refused(snapshot, {}));
  snapshot.requests[0].slo = Seconds(0);
  EXPECT_TRUE(refused(snapshot, {}));
  PlacementConfig config;
  config.tolerance = nan;
  EXPECT_TRUE(refused(example(), config));
  config = {};
  config.window_min = 0;
  EXPECT_TRUE(refused(example(), config));
  config = {};
  config.window_max = 31;
  EXPECT_TRUE(refused(example(), config));
}

TEST(PlacementPolicies, AnUnknownNameIsRefusedWithThoseAvailable) {
  const auto made = all_policies().placement("best");
  ASSERT_FALSE(made.ok());
  for (const auto name : all_policies().names(Decision::kPlacement)) {
    EXPECT_THAT(made.error().message, ::testing::HasSubstr(std::string(name)));
    EXPECT_EQ((*all_policies().placement(name))->name(), name);
  }
}

}  // namespace
}  // namespace kvd::planner
