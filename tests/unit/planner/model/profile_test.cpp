#include "planner/model/profile.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace kvd::planner {
namespace {

// OrbitFlow Fig. 2b/2c: the curves its artifact draws.
const LinearCost kCompute{Seconds(0.040), Seconds(1.23e-6)};
const LinearCost kLink{Seconds(0.040), Seconds(2.0e-5)};

TEST(LinearCost, Fig2bRatios) {
  EXPECT_NEAR(kLink.at(Tokens(2048)) / kCompute.at(Tokens(2048)), 1.90, 0.005);
  EXPECT_NEAR(kLink.at(Tokens(16384)) / kCompute.at(Tokens(16384)), 6.11, 0.005);
}

TEST(LinearCost, Fig2cCrossesTheSloAt9756Tokens) {
  EXPECT_LE(kCompute.at(Tokens(9756)), Seconds(0.052));
  EXPECT_GT(kCompute.at(Tokens(9757)), Seconds(0.052));
}

TEST(CostProfile, FollowsAChangedCost) {
  CostProfile sut(kCompute);
  const Seconds now = 1.5 * kCompute.at(Tokens(4096));
  EXPECT_TRUE(*sut.observe(Tokens(4096), now)) << "half as much again is a mismatch";
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(sut.observe(Tokens(4096), now).ok());
  EXPECT_NEAR(sut.predict(Tokens(4096)) / now, 1, 0.05);
  EXPECT_FALSE(*sut.observe(Tokens(4096), now));
}

TEST(CostProfile, NoiseTriggersNothing) {
  CostProfile sut(kCompute);
  EXPECT_FALSE(*sut.observe(Tokens(100), 1.1 * kCompute.at(Tokens(100))));
  EXPECT_FALSE(*sut.observe(Tokens(100), 0.9 * kCompute.at(Tokens(100))));
}

TEST(CostProfile, RefusesWhatIsNoTime) {
  CostProfile sut(kCompute);
  EXPECT_FALSE(sut.observe(Tokens(1), Seconds(0)).ok());
  EXPECT_FALSE(sut.observe(Tokens(1), Seconds(std::numeric_limits<double>::quiet_NaN())).ok());
  EXPECT_EQ(sut.predict(Tokens(1)), kCompute.at(Tokens(1)));
}

}  // namespace
}  // namespace kvd::planner
