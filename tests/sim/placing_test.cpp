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

/// Two engines share 64 blocks, in 8 parts of 8 blocks, and each keeps one part. With parts of
/// their own the test fails.
Setting lending(Workload workload, const std::string& policy = "unified") {
  Setting setting = placing(policy, std::move(workload), small_profile(64));
  setting.engines.front().elastic = true;
  setting.engines.push_back(setting.engines.front());
  return setting;
}

TEST(PlacingWorld, EnginesLendEachOtherHbm) {
  const Workload large = {arrival(0, 640, 100, 1)};
  const RunResult lent = outcome_of(lending(large));
  EXPECT_TRUE(lent.requests[0].finished());
  EXPECT_EQ(lent.requests[0].rotations, 0u);
  Setting own = lending(large);
  own.engines.front().elastic = false;
  EXPECT_TRUE(outcome_of(own).requests[0].refused) << "it is more than half of all";
  EXPECT_TRUE(outcome_of(lending(large, "stock")).requests[0].refused) << "no kvd, nothing lent";
  EXPECT_TRUE(outcome_of(lending({arrival(0, 1000, 100, 1)})).requests[0].refused)
      << "the other one keeps something";
}

// A request that lacks a block while memory is on its way waits for it; the first engine's memory
// goes back.
TEST(PlacingWorld, WhatOneEngineNoLongerNeedsTheOtherHas) {
  const RunResult result = outcome_of(lending({arrival(0, 640, 8, 0), arrival(2, 640, 8, 1)}));
  EXPECT_TRUE(result.requests[0].finished());
  EXPECT_TRUE(result.requests[1].finished());
  EXPECT_EQ(result.requests[1].rotations, 0u);
  const Seconds first = result.requests[1].tokens.front() - result.requests[1].arrival;
  EXPECT_LT(first.count(), 0.3) << "beside 64 ms of prefill";
}

// A part goes back once its blocks are free: whoever runs there is parked.
TEST(PlacingWorld, WhoRunsInMemoryThatOthersNeedIsParked) {
  Workload both;
  for (int i = 0; i < 6; ++i) both.push_back(arrival(0, 100, 400, 0));
  both.push_back(arrival(3, 300, 8, 1));
  for (Arrival& each : both) each.ttft_slo = Seconds(each.engine == 0 ? 600 : 1);
  const RunResult result = outcome_of(lending(both));
  EXPECT_GT(result.totals.rotations_out, 0u);
  EXPECT_EQ(result.totals.rotations_out, result.totals.rotations_in);
  for (const RequestRecord& record : result.requests) EXPECT_TRUE(record.finished());
  EXPECT_LT((result.requests[6].tokens.front() - result.requests[6].arrival).count(), 1.0);
}

// Chat comes again and again to an engine of its own, beside a batch that wants more than there is.
TEST(PlacingWorld, ATightEngineFindsMemoryBesideAPatientOne) {
  Workload both;
  for (int i = 0; i < 24; ++i) both.push_back(arrival(0, 100, 400, 0));
  for (int i = 0; i < 20; ++i) both.push_back(arrival(1 + i * 0.9, 160, 8, 1));
  for (Arrival& each : both) each.ttft_slo = Seconds(each.engine == 0 ? 600 : 5);
  const RunResult result = outcome_of(lending(both));
  std::vector<Seconds> first;
  for (const RequestRecord& record : result.requests) {
    if (record.engine == 1) first.push_back(record.tokens.front() - record.arrival);
  }
  std::sort(first.begin(), first.end());
  EXPECT_LE(first[18].count(), 1.5 * 0.016) << "P95; alone it is 16 ms";
  EXPECT_GT(first.back().count(), 0.05) << "at first the batch had all";
}

TEST(PlacingWorld, EverybodyEndsWhereHbmComesAndGoesAndOneRunIsLikeAnother) {
  for (const char* policy : {"fcfs", "lvf", "unified", "whole_request"}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      Workload both = crowd(seed, 120);
      for (std::size_t i = 0; i < both.size(); ++i) both[i].engine = i % 3 == 0 ? 1 : 0;
      const Setting setting = lending(both, policy);
      const RunResult first = outcome_of(setting), again = outcome_of(setting);
      ASSERT_EQ(first.requests.size(), both.size()) << policy;
      for (std::size_t i = 0; i < both.size(); ++i) {
        ASSERT_TRUE(first.requests[i].finished()) << policy << ", seed " << seed;
        EXPECT_EQ(first.requests[i].tokens, again.requests[i].tokens) << policy;
      }
    }
  }
}

TEST(PlacingWorld, TooFewPartsAreRefused) {
  Setting setting = lending({arrival(0, 10, 4)});
  setting.hbm = small_profile(16).hbm;
  const auto result = run(setting);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("--partition"), std::string::npos);
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
