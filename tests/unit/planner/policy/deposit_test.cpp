#include "ipc/vocabulary/deposit.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ipc/vocabulary/units.hpp"

namespace kvd {
namespace {

using Seconds = std::chrono::duration<double>;

template <class Duration>
struct Played {
  std::int64_t violations = 0;
  std::int64_t left = 0;
  std::vector<Duration> delivered;
};

template <class Duration>
Played<Duration> play(Duration slo, const std::vector<Duration>& gaps) {
  TokenDeposit<Duration> sut(slo, Duration{0});
  Played<Duration> played;
  Duration at{0};
  for (const auto gap : gaps) {
    at += gap;
    sut.generated(at, [&](Duration time) { played.delivered.push_back(time); });
  }
  played.violations = sut.violations();
  played.left = sut.left();
  return played;
}

std::vector<Nanoseconds> seconds(const std::vector<int>& gaps) {
  std::vector<Nanoseconds> made;
  made.reserve(gaps.size());
  for (const int gap : gaps) made.emplace_back(std::chrono::seconds(gap));
  return made;
}

struct Golden {
  std::vector<int> gaps;
  std::int64_t violations;
  std::int64_t left;
};

// The default prints addresses, which vary.
void PrintTo(const Golden& golden, std::ostream* out) {
  *out << ::testing::PrintToString(golden.gaps);
}

class DepositGolden : public ::testing::TestWithParam<Golden> {};

TEST_P(DepositGolden, AtAnSloOfTwo) {
  const auto played = play<Nanoseconds>(std::chrono::seconds(2), seconds(GetParam().gaps));
  EXPECT_EQ(played.violations, GetParam().violations);
  EXPECT_EQ(played.left, GetParam().left);
}

INSTANTIATE_TEST_SUITE_P(Of16, DepositGolden,
                         ::testing::Values(Golden{{1, 1, 1, 1, 4, 1}, 0, 2},
                                           Golden{{1, 1, 1, 1, 6, 1}, 0, 1},
                                           Golden{{3, 3, 3}, 3, 0}, Golden{{2, 2, 2}, 0, 0},
                                           Golden{{1, 3, 1, 3}, 0, 0}, Golden{{}, 0, 0},
                                           Golden{{100}, 1, 0}),
                         [](const auto& of) { return "Gaps" + std::to_string(of.index); });

TEST(TokenDeposit, DeliversAtTheDueTimeAndRestartsAfterALateToken) {
  const auto played = play<Nanoseconds>(std::chrono::seconds(2), seconds({1, 5, 1, 1}));
  EXPECT_EQ(played.delivered, (seconds({2, 6, 8})));
  EXPECT_EQ(played.violations, 1);
  EXPECT_EQ(played.left, 1);
}

TEST(TokenDeposit, FractionsThatMeetTheDueTimeCountInTime) {
  const auto played = play<Seconds>(Seconds(0.3), std::vector<Seconds>(30, Seconds(0.3)));
  EXPECT_EQ(played.violations, 0);
  const auto thirds = play<Seconds>(Seconds(1), std::vector<Seconds>(300, Seconds(1.0 / 3)));
  EXPECT_EQ(thirds.violations, 0);
  EXPECT_EQ(thirds.left, 200);
}

TEST(TokenDeposit, FinishDeliversTheRestAtOnce) {
  TokenDeposit<Nanoseconds> sut(Nanoseconds(10), Nanoseconds(0));
  int delivered = 0;
  const auto count = [&](Nanoseconds) { ++delivered; };
  for (int i = 1; i <= 5; ++i) sut.generated(Nanoseconds(i), count);
  EXPECT_EQ(sut.left(), 5);
  sut.advance(Nanoseconds(25), count);
  EXPECT_EQ(delivered, 2);
  sut.finish(Nanoseconds(25), count);
  EXPECT_EQ(delivered, 5);
  EXPECT_EQ(sut.left(), 0);
}

}  // namespace
}  // namespace kvd
