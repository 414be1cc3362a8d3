#include "planner/model/tier_rates.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace kvd::planner {
namespace {

Seconds transfer(std::int64_t bytes, double bandwidth, double latency) {
  return Seconds(latency + static_cast<double>(bytes) / bandwidth);
}

TEST(TierRates, FindsLatencyAndBandwidthOfALine) {
  TierRates sut;
  EXPECT_FALSE(sut.measured());
  for (const std::int64_t mib : {1, 64, 3, 17, 40, 8}) {
    ASSERT_TRUE(sut.observe(kMiB * mib, transfer((kMiB * mib).value, 2e9, 0.004)).ok());
  }
  EXPECT_NEAR(sut.bandwidth().value, 2e9, 1e3);
  EXPECT_NEAR(sut.latency().count(), 0.004, 1e-9);
}

TEST(TierRates, TransfersOfOneSizeShowBandwidthAlone) {
  TierRates sut;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(sut.observe(Bytes(1000), Seconds(0.5)).ok());
  EXPECT_NEAR(sut.bandwidth().value, 2000, 1e-6);
  EXPECT_EQ(sut.latency(), Seconds(0));
}

TEST(TierRates, FollowsAChangedLink) {
  TierRates sut;
  const auto see = [&](double bandwidth) {
    for (const std::int64_t mib : {1, 64, 3, 17, 40, 8}) {
      ASSERT_TRUE(sut.observe(kMiB * mib, transfer((kMiB * mib).value, bandwidth, 0.001)).ok());
    }
  };
  for (int i = 0; i < 5; ++i) see(4e9);
  for (int i = 0; i < 5; ++i) see(1e9);
  EXPECT_NEAR(sut.bandwidth().value, 1e9, 0.1e9);
}

TEST(TierRates, BelievesTwoTransfersInARowThatSayTheSame) {
  TierRates sut;
  const auto see = [&](double bandwidth) {
    ASSERT_TRUE(sut.observe(kMiB * 8, transfer((kMiB * 8).value, bandwidth, 0)).ok());
  };
  for (int i = 0; i < 100; ++i) see(4e9);
  see(0.4e9);
  EXPECT_GT(sut.bandwidth().value, 2e9) << "one slow transfer is nothing yet";
  for (int i = 0; i < 20; ++i) see(4e9);
  see(0.4e9);
  see(0.4e9);
  EXPECT_NEAR(sut.bandwidth().value, 0.4e9, 1e6);
  see(4e9);
  see(4e9);
  EXPECT_NEAR(sut.bandwidth().value, 4e9, 1e7) << "and back";
}

TEST(TierRates, RefusesWhatIsNoTransfer) {
  TierRates sut;
  EXPECT_FALSE(sut.observe(Bytes(0), Seconds(1)).ok());
  EXPECT_FALSE(sut.observe(Bytes(1), Seconds(0)).ok());
  EXPECT_FALSE(sut.observe(Bytes(1), Seconds(std::numeric_limits<double>::quiet_NaN())).ok());
  EXPECT_FALSE(sut.measured());
}

}  // namespace
}  // namespace kvd::planner
