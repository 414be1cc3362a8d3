// The devices of an engine: of one process, of a group's ranks, several of which may share one.
#include "kvd/core/door/devices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace kvd::core {
namespace {

using ::testing::ElementsAre;

constexpr DeviceId kZero{0}, kOne{1}, kTwo{2};

TEST(DevicesTest, WhereNothingIsSaidAllIsOnTheFirst) {
  const Devices sut;
  EXPECT_THAT(sut.all(), ElementsAre(kZero));
  EXPECT_EQ(sut.named(), 0u);
  EXPECT_FALSE(sut.several());
  EXPECT_EQ(sut.of_rank(3), kZero);
  EXPECT_EQ(sut.ranks_on(kZero, 4), 4u) << "all ranks";
  EXPECT_EQ(sut.ranks_on(kOne, 4), 0u);
}

TEST(DevicesTest, OneDeviceIsThatOfAllRanks) {
  const Devices sut(kTwo);
  EXPECT_EQ(sut.first(), kTwo);
  EXPECT_FALSE(sut.several());
  EXPECT_TRUE(sut.has(kTwo));
  EXPECT_FALSE(sut.has(kZero));
  EXPECT_EQ(sut.of_rank(1), kTwo);
  EXPECT_EQ(sut.ranks_on(kTwo, 2), 2u);
}

TEST(DevicesTest, EachRankHasItsOwnInTheOrderInWhichTheyWereNamed) {
  const Devices sut(std::vector{kTwo, kZero, kTwo});
  EXPECT_THAT(sut.all(), ElementsAre(kZero, kTwo)) << "each once, ascending";
  EXPECT_EQ(sut.first(), kZero);
  EXPECT_EQ(sut.named(), 3u);
  EXPECT_TRUE(sut.several());
  EXPECT_EQ(sut.of_rank(0), kTwo);
  EXPECT_EQ(sut.of_rank(1), kZero);
  EXPECT_EQ(sut.ranks_on(kTwo, 3), 2u);
  EXPECT_EQ(sut.ranks_on(kOne, 3), 0u);
}

TEST(DevicesTest, RanksThatAllNameOneAreOnOne) {
  const Devices sut(std::vector{kOne, kOne});
  EXPECT_FALSE(sut.several());
  EXPECT_EQ(sut.named(), 2u);
  EXPECT_EQ(sut.of_rank(1), kOne);
  EXPECT_EQ(sut.ranks_on(kOne, 2), 2u);
}

TEST(DevicesTest, EnginesMeetWhereTheyShareADevice) {
  const Devices pair(std::vector{kZero, kOne});
  EXPECT_TRUE(pair.overlap(Devices(kOne)));
  EXPECT_TRUE(Devices(kOne).overlap(pair));
  EXPECT_FALSE(pair.overlap(Devices(kTwo)));
  EXPECT_TRUE(pair.overlap(Devices(std::vector{kOne, kTwo})));
}

TEST(ShareTest, IsOfADomainAndADevice) {
  const std::set<Share> shares = {
      {DomainId(2), kZero}, {DomainId(1), kOne}, {DomainId(1), kZero}, {DomainId(1), kOne}};
  EXPECT_EQ(shares.size(), 3u);
  EXPECT_EQ(*shares.begin(), (Share{DomainId(1), kZero}));
}

}  // namespace
}  // namespace kvd::core
