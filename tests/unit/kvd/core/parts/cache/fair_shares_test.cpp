// What there is once and owners share.
#include "ipc/vocabulary/fair_shares.hpp"

#include <gtest/gtest.h>

#include <random>

namespace kvd {
namespace {

/// As much as it may.
void take_all(FairShares<int>& sut, int owner) { sut.add(owner, sut.most(owner) - sut.of(owner)); }

TEST(FairShares, OneThatIsAloneMayHaveHalfOfWhatIsNotKeptForOthers) {
  FairShares<int> sut(100, 5);
  EXPECT_TRUE(sut.fits(1, 50));
  EXPECT_FALSE(sut.fits(1, 51));
}

TEST(FairShares, WhoeverComesNextFindsHalfOfTheRest) {
  FairShares<int> sut(100, 5);
  take_all(sut, 1);
  EXPECT_EQ(sut.most(2), 25);
}

TEST(FairShares, NoNumberOfGreedyOnesTakesAnybodysFloor) {
  FairShares<int> sut(100, 5);
  for (int owner = 0; owner < 64; ++owner) {
    EXPECT_GE(sut.most(owner), 5) << owner;
    take_all(sut, owner);
  }
  EXPECT_LE(sut.all(), 100 + 5 * 64);
}

TEST(FairShares, WhatIsGivenBackOthersMayHave) {
  FairShares<int> sut(100, 5);
  take_all(sut, 1);
  sut.add(1, -sut.of(1));
  EXPECT_EQ(sut.all(), 0);
  EXPECT_EQ(sut.most(2), 50);
}

TEST(FairShares, OneThatHasMoreThanItsShareByNowGetsNoMoreAndLosesNothing) {
  FairShares<int> sut(100, 5);
  take_all(sut, 1);
  take_all(sut, 2);
  EXPECT_FALSE(sut.fits(1, 1));
  EXPECT_TRUE(sut.fits(1, 0));
  EXPECT_EQ(sut.of(1), 50);
}

TEST(FairShares, AllTogetherNeverHaveMoreThanThereIs) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  FairShares<int> sut(1000, 3);
  for (int i = 0; i < 10'000; ++i) {
    const int owner = static_cast<int>(random() % 20);
    const auto change = static_cast<std::int64_t>(random() % 200);
    if (random() % 3 == 0) {
      sut.add(owner, -std::min(sut.of(owner), change));
    } else if (sut.fits(owner, change)) {
      sut.add(owner, change);
    }
    ASSERT_LE(sut.all(), 1000 + 3 * 20);
  }
}

}  // namespace
}  // namespace kvd
