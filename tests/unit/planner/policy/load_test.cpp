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

TEST(MeasuredCrossover, ChangesItsMindOnlyForAMargin) {
  MeasuredCrossoverPolicy sut;
  auto costs = example();
  const auto at = [&](double bandwidth) {
    costs.bandwidth = {bandwidth};
    return sut.decide(costs);
  };
  EXPECT_EQ(at(1.0e9), Tokens(0));
  EXPECT_EQ(at(1.35e9), Tokens(0)) << "a little faster than prefill";
  EXPECT_EQ(at(2.0e9), costs.tokens);
  EXPECT_EQ(at(1.25e9), costs.tokens) << "a little slower than prefill";
  EXPECT_EQ(at(1.0e9), Tokens(0));
}

TEST(FixedLoadPolicies, AlwaysAndNever) {
  EXPECT_EQ(AlwaysLoadPolicy().decide(example()), Tokens(8192));
  EXPECT_EQ(NeverLoadPolicy().decide(example()), Tokens(0));
}

}  // namespace
}  // namespace kvd::planner
