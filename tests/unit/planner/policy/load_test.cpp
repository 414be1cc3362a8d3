#include "planner/policy/load.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "tests/unit/planner/seed.hpp"

namespace kvd::planner {
namespace {

LoadCosts example() {
  return {Tokens(8192), Bytes(1073741824), {1e9},     Seconds(0.001),
          Seconds(0),   Seconds(1e-4),     Seconds(0)};
}

TEST(LoadCosts, ExampleIsRecomputedAtEveryLength) {
  EXPECT_NEAR(example().load(8192).count(), 1.074741824, 1e-12);
  EXPECT_NEAR(example().prefill(8192).count(), 0.8192, 1e-12);
  EXPECT_FALSE(example().crossover());
}

TEST(LoadCosts, AFastTierWinsFromItsLatencyOn) {
  auto costs = example();
  costs.bytes = Bytes(0);
  EXPECT_EQ(costs.crossover(), 11) << "at 10 tokens both take a millisecond";
}

TEST(LoadCosts, TheCrossoverIsTheFirstOfAllLengthsThatWin) {
  SCOPED_TRACE(::testing::Message() << "seed " << testing::test_seed());
  std::mt19937_64 random(testing::test_seed());
  std::uniform_real_distribution<double> unit(0, 1);
  for (int round = 0; round < 3000; ++round) {
    LoadCosts costs = example();
    costs.tokens = Tokens(1000);
    costs.bytes = Bytes(static_cast<std::int64_t>(unit(random) * 2e5));
    costs.latency = Seconds(unit(random) * 0.01);
    costs.prefill_fixed = Seconds(random() % 2 ? unit(random) * 0.01 : 0);
    costs.prefill_per_token = Seconds(unit(random) * 2e-7);
    costs.prefill_per_token2 = Seconds(random() % 2 ? unit(random) * 1e-9 : 0);
    std::int64_t last_loss = 0;
    for (std::int64_t n = 1; n <= 200'000; n += 1 + n / 400) {
      if (!costs.loading_wins(static_cast<double>(n))) last_loss = n;
    }
    const auto crossover = costs.crossover();
    if (!crossover || *crossover > 190'000) continue;
    ASSERT_LE(last_loss, *crossover);
    ASSERT_TRUE(costs.loading_wins(static_cast<double>(*crossover)));
    ASSERT_TRUE(*crossover == 1 || !costs.loading_wins(static_cast<double>(*crossover - 1)));
  }
}

TEST(LoadCosts, RefusesRatesThatAreNone) {
  auto costs = example();
  costs.bandwidth = {0};
  EXPECT_FALSE(check(costs).ok());
  costs = example();
  costs.latency = Seconds(std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(check(costs).ok());
  costs = example();
  costs.tokens = Tokens(0);
  EXPECT_FALSE(check(costs).ok());
  EXPECT_TRUE(check(example()).ok());
}

TEST(LoadCosts, EveryTierHasItsOwnCrossover) {
  auto costs = example();
  costs.prefill_per_token2 = Seconds(1e-9);
  const auto at = [&](double bandwidth, double latency) {
    costs.bandwidth = {bandwidth};
    costs.latency = Seconds(latency);
    return costs.crossover();
  };
  EXPECT_EQ(at(20e9, 1e-5), 1) << "DRAM";
  EXPECT_EQ(at(3e9, 0.01), 178) << "a disk: 0.01 s against 56 us a token more";
  EXPECT_GT(*at(1e9, 0.05), 30'000) << "a slow network: only the quadratic part wins";
}

TEST(MeasuredCrossover, ChangesItsMindOnlyForAMarginAndATierAtATime) {
  const MeasuredCrossoverPolicy sut;
  LoadMemory disk, network;
  auto costs = example();
  const auto at = [&](double bandwidth, LoadMemory& tier) {
    costs.bandwidth = {bandwidth};
    return sut.decide(costs, tier);
  };
  EXPECT_EQ(at(1.0e9, disk), Tokens(0));
  EXPECT_EQ(at(1.35e9, disk), Tokens(0)) << "a little faster than prefill";
  EXPECT_EQ(at(1.35e9, network), costs.tokens) << "another tier starts afresh";
  EXPECT_EQ(at(2.0e9, disk), costs.tokens);
  EXPECT_EQ(at(1.25e9, disk), costs.tokens) << "a little slower than prefill";
  EXPECT_EQ(at(1.0e9, disk), Tokens(0));
  EXPECT_EQ(at(1.25e9, network), costs.tokens);
}

TEST(MeasuredCrossover, TheTiersQueueCountsAndWhatTheEngineDoesFirst) {
  const MeasuredCrossoverPolicy sut;
  auto costs = example();
  costs.bandwidth = {3e9};
  LoadMemory quiet, crowded;
  EXPECT_EQ(sut.decide(costs, quiet), costs.tokens);
  costs.queued = Bytes(2'000'000'000);
  EXPECT_EQ(sut.decide(costs, crowded), Tokens(0)) << "1.03 s against 0.82 s";
  costs.ahead = Seconds(1);
  LoadMemory busy;
  EXPECT_EQ(sut.decide(costs, busy), costs.tokens) << "it is there before the engine gets to it";
}

TEST(MeasuredCrossover, NobodyWaitsPastTheTimeOfComputing) {
  auto costs = example();
  EXPECT_NEAR(MeasuredCrossoverPolicy().patience(costs).count(), 0.8192, 1e-12);
  costs.ahead = Seconds(1);
  EXPECT_NEAR(MeasuredCrossoverPolicy().patience(costs).count(), 1.8192, 1e-12);
  EXPECT_EQ(NeverLoadPolicy().patience(costs), Seconds(0));
  EXPECT_GT(AlwaysLoadPolicy().patience(costs), Seconds(1e9));
}

/// How many of this many decisions are the other choice.
int explored(double bandwidth, int decisions) {
  const MeasuredCrossoverPolicy sut;
  LoadMemory memory;
  auto costs = example();
  costs.bandwidth = {bandwidth};
  int others = 0;
  for (int i = 0; i < decisions; ++i) {
    const bool loads = sut.decide(costs, memory) > Tokens(0);
    others += loads != *memory.loaded_last ? 1 : 0;
  }
  return others;
}

TEST(MeasuredCrossover, TriesTheOtherChoiceTheRarerTheMoreItCosts) {
  EXPECT_EQ(explored(1.4e9, 1000), 9) << "loading takes 0.77 s of 0.82 s";
  EXPECT_EQ(explored(0.1e9, 1010), 5) << "a load that is given up in time costs twice";
  EXPECT_EQ(explored(13e9, 10'000), 10) << "computing takes ten times as long";
}

}  // namespace
}  // namespace kvd::planner
