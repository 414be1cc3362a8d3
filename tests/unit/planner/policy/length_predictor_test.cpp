#include "planner/policy/length_predictor.hpp"

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/planner/seed.hpp"

namespace kvd::planner {
namespace {

LengthPredictor trained(std::int64_t from, std::int64_t to) {
  LengthPredictor sut;
  for (std::int64_t n = from; n <= to; ++n) sut.ended(Tokens(n));
  return sut;
}

TEST(LengthPredictor, SaysNothingUntilEnoughAnswersEnded) {
  EXPECT_FALSE(trained(1, 7).estimate(Tokens(0), Tokens(100)));
  EXPECT_TRUE(trained(1, 8).estimate(Tokens(0), Tokens(100)));
}

TEST(LengthPredictor, QuantilesOfThePast) {
  const auto estimate = *trained(100, 200).estimate(Tokens(0), Tokens(1000));
  EXPECT_EQ(estimate.low, Tokens(110));
  EXPECT_EQ(estimate.median, Tokens(150));
  EXPECT_EQ(estimate.high, Tokens(190));
}

TEST(LengthPredictor, OnlyLongerAnswersCountForOneThatIsUnderWay) {
  const auto sut = trained(100, 200);
  EXPECT_EQ(sut.estimate(Tokens(180), Tokens(1000))->median, Tokens(191));
  const auto beyond = *sut.estimate(Tokens(200), Tokens(1000));
  EXPECT_EQ(beyond.low, Tokens(201));
  EXPECT_EQ(beyond.high, Tokens(1000));
  EXPECT_EQ(sut.estimate(Tokens(0), Tokens(120))->high, Tokens(120)) << "never above the most";
}

TEST(LengthPredictor, AQuantileIsAmongTheLongerOnes) {
  EXPECT_FALSE(trained(1, 7).quantile(Tokens(0), 0.5));
  const auto sut = trained(100, 200);
  EXPECT_EQ(sut.quantile(Tokens(0), 0.9), Tokens(190));
  EXPECT_EQ(sut.quantile(Tokens(199), 0.1), Tokens(200));
  EXPECT_FALSE(sut.quantile(Tokens(200), 0.9)) << "none was longer";
}

TEST(LengthPredictor, OldAnswersAreForgotten) {
  auto sut = trained(1, 1000);
  EXPECT_EQ(sut.samples(), LengthPredictor::kWindow);
  for (std::size_t i = 0; i < LengthPredictor::kWindow; ++i) sut.ended(Tokens(7));
  EXPECT_EQ(sut.samples(), LengthPredictor::kWindow);
  EXPECT_EQ(sut.estimate(Tokens(0), Tokens(100))->high, Tokens(7));
}

TEST(LengthPredictor, LearnsADistributionAndIsDeterministic) {
  SCOPED_TRACE(::testing::Message() << "seed " << testing::test_seed());
  std::mt19937_64 random(testing::test_seed());
  std::exponential_distribution<double> length(1.0 / 300);
  LengthPredictor a, b;
  for (int i = 0; i < 5000; ++i) {
    const Tokens answer(1 + static_cast<std::int64_t>(length(random)));
    a.ended(answer);
    b.ended(answer);
  }
  int below_low = 0, below_median = 0, below_high = 0;
  const auto estimate = *a.estimate(Tokens(0), Tokens(100'000));
  EXPECT_EQ(b.estimate(Tokens(0), Tokens(100'000))->median, estimate.median);
  for (int i = 0; i < 10'000; ++i) {
    const Tokens answer(1 + static_cast<std::int64_t>(length(random)));
    below_low += answer < estimate.low ? 1 : 0;
    below_median += answer < estimate.median ? 1 : 0;
    below_high += answer < estimate.high ? 1 : 0;
  }
  EXPECT_NEAR(below_low, 1000, 500);
  EXPECT_NEAR(below_median, 5000, 1000);
  EXPECT_NEAR(below_high, 9000, 600);
}

TEST(LengthBucket, MovesUpWithWhatIsMade) {
  const auto fresh = estimate_in_bucket(Tokens(100), Tokens(200), Tokens(0), Tokens(1000));
  EXPECT_EQ(fresh.low, Tokens(100));
  EXPECT_EQ(fresh.median, Tokens(150));
  EXPECT_EQ(fresh.high, Tokens(200));
  const auto past = estimate_in_bucket(Tokens(100), Tokens(200), Tokens(170), Tokens(180));
  EXPECT_EQ(past.low, Tokens(171));
  EXPECT_EQ(past.median, Tokens(171));
  EXPECT_EQ(past.high, Tokens(180));
}

TEST(LengthUnknown, IsTheMostItMayBeAndOneTokenAtLeast) {
  EXPECT_EQ(estimate_unknown(Tokens(5), Tokens(9)).low, Tokens(6));
  EXPECT_EQ(estimate_unknown(Tokens(5), Tokens(9)).median, Tokens(9));
}

}  // namespace
}  // namespace kvd::planner
