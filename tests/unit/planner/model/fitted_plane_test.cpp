#include "planner/model/fitted_plane.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::planner {
namespace {

using ::testing::DoubleNear;

/// 20 ms, 1 us a token of the batch, 100 us a token of prompts.
double step_s(double tokens, double prompts) { return 0.02 + 1e-6 * tokens + 1e-4 * prompts; }

// Under load batches grow while chunks shrink: a line over prompt tokens alone calls them free.
TEST(FittedPlane, TellsApartWhatRisesWhileTheOtherFalls) {
  FittedPlane sut(0.99);
  for (int i = 0; i < 400; ++i) {
    const double tokens = 20'000 + 100.0 * i, prompts = 500 - i + 40 * (i % 3);
    sut.observe(tokens, prompts, step_s(tokens, prompts));
  }
  EXPECT_THAT(sut.plane().by_first, DoubleNear(1e-6, 1e-9));
  EXPECT_THAT(sut.plane().by_second, DoubleNear(1e-4, 1e-7));
  EXPECT_THAT(sut.plane().at(40'000, 0), DoubleNear(0.06, 1e-4));
}

TEST(FittedPlane, IsALineWhereOneOfBothStands) {
  FittedPlane prompts_alone(0.99), tokens_alone(0.99);
  for (int i = 0; i < 50; ++i) {
    prompts_alone.observe(1000, 100 * (i % 5), step_s(1000, 100 * (i % 5)));
    tokens_alone.observe(1000.0 * i, 0, step_s(1000.0 * i, 0));
  }
  EXPECT_EQ(prompts_alone.plane().by_first, 0);
  EXPECT_THAT(prompts_alone.plane().by_second, DoubleNear(1e-4, 1e-9));
  EXPECT_EQ(tokens_alone.plane().by_second, 0);
  EXPECT_THAT(tokens_alone.plane().by_first, DoubleNear(1e-6, 1e-9));
}

TEST(FittedPlane, GivesBothOfTwoThatMoveTogetherToOne) {
  FittedPlane sut(0.99);
  for (int i = 0; i < 50; ++i) sut.observe(100 * (i % 5), 10 * (i % 5), 0.02 + 0.01 * (i % 5));
  EXPECT_THAT(sut.plane().at(200, 20), DoubleNear(0.04, 1e-9));
  EXPECT_TRUE(sut.plane().by_first == 0 || sut.plane().by_second == 0);
}

TEST(FittedPlane, NoSlopePointsDown) {
  FittedPlane sut(0.99);
  for (int i = 0; i < 200; ++i) {
    const double tokens = 1000 + 37 * (i % 11), prompts = 100 * (i % 7);
    sut.observe(tokens, prompts, 0.05 - 1e-6 * tokens + 1e-4 * prompts);
  }
  EXPECT_EQ(sut.plane().by_first, 0);
  EXPECT_THAT(sut.plane().by_second, DoubleNear(1e-4, 1e-6));
}

TEST(FittedPlane, IsTheMeanOfWhatNeverMoves) {
  FittedPlane sut(0.99);
  EXPECT_FALSE(sut.measured());
  for (int i = 0; i < 10; ++i) sut.observe(100, 10, 0.03 + 0.001 * (i % 2));
  EXPECT_TRUE(sut.measured());
  EXPECT_THAT(sut.plane().at(500, 500), DoubleNear(0.0305, 1e-4));
}

}  // namespace
}  // namespace kvd::planner
