#include "kernels/device/host/link_throttle.hpp"

#include <gtest/gtest.h>

namespace kvd::kernels {
namespace {

using std::chrono::seconds;

LinkThrottle one_mib_a_second() {
  LinkThrottle sut;
  sut.set_rate({1024.0 * 1024.0});
  return sut;
}

TEST(LinkThrottleTest, WithoutARateEverythingPasses) {
  LinkThrottle sut;
  EXPECT_EQ(sut.crossed_at(seconds(5), kGiB), seconds(5));
}

TEST(LinkThrottleTest, BytesTakeTheirTime) {
  LinkThrottle sut = one_mib_a_second();
  EXPECT_EQ(sut.crossed_at(seconds(10), kMiB), seconds(11) - LinkThrottle::kBurst);
}

TEST(LinkThrottleTest, PiecesQueueBehindEachOther) {
  LinkThrottle sut = one_mib_a_second();
  const TimePoint first = sut.crossed_at(seconds(10), kMiB);
  EXPECT_EQ(sut.crossed_at(seconds(10), kMiB), first + seconds(1));
}

TEST(LinkThrottleTest, AnIdleLinkSavesUpNoMoreThanTheBurst) {
  LinkThrottle sut = one_mib_a_second();
  (void)sut.crossed_at(seconds(10), kMiB);
  EXPECT_EQ(sut.crossed_at(seconds(100), kMiB), seconds(101) - LinkThrottle::kBurst);
}

TEST(LinkThrottleTest, LateWakingsDoNotLowerTheRate) {
  LinkThrottle sut;
  sut.set_rate({1024.0 * 1024.0 * 1024.0});  // one MiB takes just under a millisecond
  TimePoint now = seconds(1);
  for (int i = 0; i < 1024; ++i) {
    now = sut.crossed_at(now, kMiB) + std::chrono::microseconds(150);
  }
  EXPECT_NEAR(to_seconds(now - seconds(1)), 1.0, 0.001);
}

TEST(LinkThrottleTest, ANewRateForgetsTheOldQueue) {
  LinkThrottle sut = one_mib_a_second();
  (void)sut.crossed_at(seconds(10), kGiB);
  sut.set_rate({});
  EXPECT_EQ(sut.crossed_at(seconds(10), kMiB), seconds(10));
}

TEST(LinkThrottleTest, AlmostNoRateDoesNotOverflow) {
  LinkThrottle sut;
  sut.set_rate({1e-30});
  EXPECT_GT(sut.crossed_at(seconds(1), kGiB), seconds(1'000'000));
}

}  // namespace
}  // namespace kvd::kernels
