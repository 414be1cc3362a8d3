// Engines that place their blocks themselves, in the virtual world.
#include <gtest/gtest.h>

#include "kvd/sim/run/metrics.hpp"
#include "tests/sim/small_setting.hpp"

namespace kvd::sim::test {
namespace {

Setting placing(const std::string& policy, Workload workload,
                const Profile& profile = small_profile()) {
  Setting setting = small_setting(policy, std::move(workload), profile);
  setting.engines_place = true;
  return setting;
}

RunResult outcome_of(const Setting& setting) {
  auto result = run(setting);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return result.ok() ? std::move(result).value() : RunResult{};
}

// Prefill of 100 tokens 10 ms; then 11 ms a decode step.
TEST(PlacingWorld, OneRequestTakesWhatTheProfileSays) {
  for (const char* policy : {"stock", "fcfs", "unified"}) {
    const RunResult result = outcome_of(placing(policy, {arrival(2, 100, 4)}));
    ASSERT_EQ(result.requests.size(), 1u) << policy;
    std::vector<double> times;
    for (const Seconds token : result.requests[0].tokens) times.push_back(token.count());
    ASSERT_EQ(times.size(), 4u) << policy;
    EXPECT_NEAR(times[0], 2.010, 1e-8) << policy;
    EXPECT_NEAR(times[3], 2.043, 1e-8) << policy;
    EXPECT_NEAR(result.totals.compute.count(), 0.043, 1e-8) << policy;
  }
}

// 512 tokens of HBM; two answers of 200 tokens outgrow it.
TEST(PlacingWorld, StockComputesAgainWhatItPreemptsAndKvdParksIt) {
  const Workload two = {arrival(0, 100, 200), arrival(0.01, 100, 200)};
  const RunResult stock = outcome_of(placing("stock", two));
  EXPECT_GT(stock.requests[1].rotations, 0u);
  EXPECT_EQ(stock.totals.rotations_out, 0u);
  const RunResult kvd = outcome_of(placing("fcfs", two));
  EXPECT_GT(kvd.totals.rotations_out, 0u);
  EXPECT_EQ(kvd.totals.rotations_out, kvd.totals.rotations_in);
  EXPECT_LT(kvd.totals.compute, stock.totals.compute) << "nothing is computed twice";
}

TEST(PlacingWorld, WithoutDramWhatIsPreemptedIsComputedAgain) {
  const Profile bare = small_profile(32, 1);
  const Workload two = {arrival(0, 100, 200), arrival(0.01, 100, 200)};
  const RunResult result = outcome_of(placing("fcfs", two, bare));
  EXPECT_EQ(result.totals.rotations_out, 0u);
  EXPECT_TRUE(result.requests[1].finished());
}

TEST(PlacingWorld, EverybodyEndsUnderEveryPolicyAndOneRunIsLikeAnother) {
  for (const char* policy : {"stock", "fcfs", "lvf", "unified", "srtf", "si_code", "layerkv",
                             "past_future", "whole_request", "lvf+guards"}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      const Setting setting = placing(policy, crowd(seed));
      const RunResult first = outcome_of(setting), again = outcome_of(setting);
      ASSERT_EQ(first.requests.size(), setting.workload.size()) << policy;
      for (std::size_t i = 0; i < first.requests.size(); ++i) {
        const RequestRecord& record = first.requests[i];
        ASSERT_TRUE(record.finished()) << policy << ", seed " << seed;
        EXPECT_EQ(Tokens(std::ssize(record.tokens)), record.output) << policy;
        EXPECT_EQ(record.tokens, again.requests[i].tokens) << policy;
      }
    }
  }
}

TEST(PlacingWorld, EnginesHaveTheirPartsAndTakeTurnsOnADevice) {
  Setting setting = placing("unified", {arrival(0, 100, 4, 0), arrival(0, 100, 4, 1)});
  setting.engines.push_back(setting.engines.front());
  setting.one_device = true;
  const RunResult result = outcome_of(setting);
  EXPECT_NEAR(result.requests[0].tokens.front().count(), 0.010, 1e-8);
  EXPECT_NEAR(result.requests[1].tokens.front().count(), 0.020, 1e-8);
}

TEST(PlacingWorld, WhatCanNeverFitIsRefused) {
  const RunResult result = outcome_of(placing("unified", {arrival(0, 600, 4), arrival(0, 10, 4)}));
  EXPECT_TRUE(result.requests[0].refused);
  EXPECT_EQ(result.totals.refused, 1u);
  EXPECT_TRUE(result.requests[1].finished());
}

TEST(PlacingWorld, KnowsWhichPoliciesSuchEnginesAskFor) {
  for (const char* policy : {"orbitflow", "flexgen", "sjf_oracle"}) {
    const auto result = run(placing(policy, {arrival(0, 10, 4)}));
    ASSERT_FALSE(result.ok()) << policy;
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_TRUE(run(placing("unified+guards", {arrival(0, 10, 4)})).ok());
  Setting shortest = placing("unified", {arrival(0, 10, 4)});
  shortest.shortest_first = true;
  EXPECT_FALSE(run(shortest).ok()) << "it would have no effect";
  const auto stock = run(small_setting("stock", {arrival(0, 10, 4)}));
  ASSERT_FALSE(stock.ok());
  EXPECT_NE(stock.error().message.find("--engines-place"), std::string::npos);
}

// What goals are for: chat beside a batch that can wait keeps its own.
TEST(PlacingWorld, ATightClassIsServedBeforeALooseOne) {
  Workload both = crowd(4, 120);
  for (std::size_t i = 0; i < both.size(); ++i) {
    both[i].ttft_slo = Seconds(i % 4 == 0 ? 0.5 : 60);
    both[i].tbt_slo = Seconds(i % 4 == 0 ? 0.05 : 1);
  }
  const auto tight_in_time = [&](const char* policy) {
    const RunResult result = outcome_of(placing(policy, both));
    double met = 0;
    for (std::size_t i = 0; i < result.requests.size(); i += 4) {
      const RequestRecord& record = result.requests[i];
      met += record.tokens.front() - record.arrival <= record.ttft_slo ? 1 : 0;
    }
    return met / 30;
  };
  EXPECT_GE(tight_in_time("unified"), tight_in_time("stock") + 0.2);
}

}  // namespace
}  // namespace kvd::sim::test
