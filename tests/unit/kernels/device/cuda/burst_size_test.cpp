#include "kernels/device/cuda/copies/bursts/burst_size.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace kvd::kernels::cuda {
namespace {

using std::chrono::microseconds;

constexpr BurstRule kRule{microseconds(200), kKiB * 256, kMiB * 96};

/// Bursts on a link that moves this many bytes a microsecond; each end is seen up to 20 us late.
void keep_busy(BurstSize& sut, double bytes_a_microsecond, int bursts) {
  for (int i = 0; i < bursts; ++i) {
    const double micros = static_cast<double>(sut.bytes().value) / bytes_a_microsecond;
    const Nanoseconds moving(static_cast<std::int64_t>(micros * 1000));
    sut.on_burst(sut.bytes(), moving + microseconds(i * 7 % 21));
  }
}

double microseconds_of(const BurstSize& sut, double bytes_a_microsecond) {
  return static_cast<double>(sut.bytes().value) / bytes_a_microsecond;
}

class Links : public ::testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(GigabytesASecond, Links, ::testing::Values(12.0, 26.0, 55.0, 400.0));

TEST_P(Links, ABurstTakesItsTimeOnEveryLink) {
  const double rate = GetParam() * 1000;
  BurstSize sut(kRule);
  EXPECT_LE(microseconds_of(sut, rate), 450) << "at the first guess";
  keep_busy(sut, rate, 400);
  EXPECT_GT(microseconds_of(sut, rate), 170);
  EXPECT_LE(microseconds_of(sut, rate), 200);
  EXPECT_NEAR(static_cast<double>(sut.time_of(sut.bytes()).count()), 200e3, 1);
}

TEST(BurstSize, StaysWithinItsBounds) {
  BurstSize sut(kRule);
  keep_busy(sut, 10, 400);
  EXPECT_EQ(sut.bytes(), kKiB * 256);
  keep_busy(sut, 5e6, 40'000);
  EXPECT_GT(sut.bytes(), kMiB * 95);
  EXPECT_LE(sut.bytes(), kMiB * 96);
}

// Else the time that it takes to begin one would count as a slow link.
TEST(BurstSize, LearnsNothingFromShortBursts) {
  BurstSize sut(kRule);
  const Bytes before = sut.bytes();
  for (int i = 0; i < 1000; ++i) sut.on_burst(Bytes(before.value / 2 - 1), microseconds(200));
  EXPECT_EQ(sut.bytes(), before);
}

TEST(BurstSize, WithoutATimeIsWhatItWasSetTo) {
  BurstSize sut({Nanoseconds(0), kKiB, kMiB * 4});
  keep_busy(sut, 100, 100);
  EXPECT_EQ(sut.bytes(), kMiB * 4);
}

}  // namespace
}  // namespace kvd::kernels::cuda
