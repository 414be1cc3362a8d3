// What every placement policy promises, whatever its rule.
#include "planner/policy/placement/placement.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "planner/baselines/all_policies.hpp"
#include "tests/unit/planner/model/event_simulation.hpp"
#include "tests/unit/planner/seed.hpp"

namespace kvd::planner::testing {
namespace {

const ManualClock kNoTime;

class PlacementContract : public ::testing::TestWithParam<std::string_view> {
 protected:
  [[nodiscard]] Result<PlacementDecision> decide(const PlacementSnapshot& snapshot) const {
    return sut->decide(snapshot, config, kNoTime);
  }
  std::unique_ptr<PlacementPolicy> sut = all_policies().placement(GetParam()).value();
  PlacementConfig config = [] {
    PlacementConfig made;
    made.budget_nodes = 20;
    return made;
  }();
};

PlacementSnapshot random_snapshot(std::mt19937_64& random) {
  std::uniform_real_distribution<double> compute(0.2, 2);
  PlacementSnapshot snapshot;
  snapshot.model = {std::vector<Seconds>(1 + random() % 24), Seconds(compute(random) / 10)};
  for (auto& time : snapshot.model.compute) time = Seconds(compute(random));
  snapshot.buffer = random() % 2 ? BufferRule::kStrict : BufferRule::kEq1;
  snapshot.open_blocks = random() % 4 == 0;
  std::int64_t all = 1;
  for (auto n = 1 + random() % 5; n > 0; --n) {
    auto& request = snapshot.requests.emplace_back();
    request.blocks = Blocks(static_cast<std::int64_t>(random() % 20));
    all += request.blocks.value * static_cast<std::int64_t>(snapshot.model.layers());
    if (random() % 3 == 0) request.tokens = Tokens(request.blocks.value * 16);
    if (random() % 3 == 0) request.slo = Seconds(compute(random) * 30);
    request.deposit = static_cast<std::int64_t>(random() % 50);
  }
  snapshot.capacity = Blocks(std::uniform_int_distribution<std::int64_t>(0, 2 * all)(random));
  return snapshot;
}

TEST_P(PlacementContract, NamesItself) { EXPECT_EQ(sut->name(), GetParam()); }

TEST_P(PlacementContract, RandomSnapshotsFitOrNameAVictim) {
  SCOPED_TRACE(::testing::Message() << "seed " << test_seed());
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 400; ++round) {
    const auto snapshot = random_snapshot(random);
    const auto decision = decide(snapshot);
    ASSERT_TRUE(decision.ok()) << decision.error().message;
    if (!decision->feasible) {
      ASSERT_EQ(decision->victim.has_value(), snapshot.requests.size() > 1);
      ASSERT_TRUE(!decision->victim || *decision->victim < snapshot.requests.size());
      continue;
    }
    const auto& memory = decision->memory;
    ASSERT_LE(memory.resident + memory.staging(snapshot.buffer), snapshot.capacity);
    ASSERT_LE(decision->lower_bound.count(), decision->latency.count() + 1e-9);
    ASSERT_GE(decision->expires_in, config.window_min);
    ASSERT_LE(decision->expires_in, config.window_max);
    ASSERT_LE(decision->violations_per_step, config.alpha + 1e-9);
  }
}

TEST_P(PlacementContract, ThePlannedStepIsTheOnePlayed) {
  SCOPED_TRACE(::testing::Message() << "seed " << test_seed());
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 200; ++round) {
    const auto snapshot = random_snapshot(random);
    const auto decision = decide(snapshot);
    if (!decision->feasible) continue;
    ASSERT_EQ(decision->placement.size(), snapshot.requests.size());
    std::vector<StreamedRequest> requests;
    for (std::size_t r = 0; r < snapshot.requests.size(); ++r) {
      requests.push_back(
          {blocks_after(snapshot.requests[r], config.window_min, snapshot.block_tokens),
           decision->placement[r].offloaded});
    }
    EventSimulation played(snapshot.model, requests);
    ASSERT_NEAR(played.run(), decision->latency.count(), 1e-9);
    if (snapshot.buffer != BufferRule::kStrict) continue;
    ASSERT_LE(static_cast<double>(decision->memory.resident.value) + played.peak_staging,
              static_cast<double>(snapshot.capacity.value) + 1e-6);
  }
}

TEST_P(PlacementContract, WithNodesAloneThePlanIsAPureFunction) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 50; ++round) {
    const auto snapshot = random_snapshot(random);
    const auto once = *decide(snapshot);
    const auto twice = *decide(snapshot);
    ASSERT_EQ(once.feasible, twice.feasible);
    ASSERT_EQ(once.latency, twice.latency);
    ASSERT_EQ(once.lower_bound, twice.lower_bound);
    ASSERT_EQ(once.placement.size(), twice.placement.size());
    for (std::size_t r = 0; r < once.placement.size(); ++r) {
      ASSERT_EQ(once.placement[r].offloaded, twice.placement[r].offloaded);
    }
  }
}

TEST_P(PlacementContract, ARequestLargerThanHbmIsInfeasibleForMemoryWithWhomToPause) {
  PlacementSnapshot snapshot;
  snapshot.model = {std::vector<Seconds>(4, Seconds(1)), Seconds(0.1)};
  snapshot.capacity = Blocks(10);
  snapshot.requests.resize(2);
  snapshot.requests[0].blocks = Blocks(1);
  snapshot.requests[1].blocks = Blocks(11);
  const auto decision = *decide(snapshot);
  EXPECT_FALSE(decision.feasible);
  EXPECT_EQ(decision.reason, InfeasibleReason::kMemory);
  EXPECT_TRUE(decision.proved);
  EXPECT_EQ(decision.victim, 1u);
}

TEST_P(PlacementContract, RefusesWhatMakesNoSense) {
  std::mt19937_64 random(test_seed());
  const auto refused = [&](auto spoil) {
    auto snapshot = random_snapshot(random);
    spoil(snapshot);
    const auto decision = decide(snapshot);
    return !decision.ok() && decision.error().code == ErrorCode::kInvalidArgument;
  };
  const Seconds nan(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(refused([&](auto& of) { of.requests.clear(); }));
  EXPECT_TRUE(refused([&](auto& of) { of.requests[0].blocks = Blocks(-1); }));
  EXPECT_TRUE(refused([&](auto& of) { of.requests[0].slo = Seconds(0); }));
  EXPECT_TRUE(refused([&](auto& of) { of.model.per_block = nan; }));
  EXPECT_TRUE(refused([&](auto& of) { of.model.compute.clear(); }));
  EXPECT_TRUE(refused([&](auto& of) { of.model.compute.resize(1025, Seconds(1)); }));
  EXPECT_TRUE(refused([&](auto& of) { of.capacity = Blocks(-1); }));
}

INSTANTIATE_TEST_SUITE_P(Built, PlacementContract,
                         ::testing::ValuesIn(all_policies().names(Decision::kPlacement).begin(),
                                             all_policies().names(Decision::kPlacement).end()),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace kvd::planner::testing
