// Tests who gives up files on disk for whom.
#include "kvd/store/index/disk_shares.hpp"

#include <gtest/gtest.h>

namespace kvd::store {
namespace {

constexpr DomainId kFirst(1), kSecond(2);
constexpr Bytes kSize(64), kGrain(1);

DiskUse use(std::uint32_t id, std::set<DomainId> domains, std::int64_t bytes) {
  return {id, std::move(domains), Bytes(bytes), kGrain, TimePoint{id}, false, true};
}

std::optional<std::uint32_t> asks(const std::vector<DiskUse>& all, std::uint32_t id,
                                  DomainId domain) {
  return disk_gives_way(all, {id, domain, kGrain}, kSize);
}

TEST(DiskShares, WhoHasMoreThanItsShareGivesWayToAnotherDomain) {
  EXPECT_EQ(asks({use(1, {kFirst}, 64)}, 2, kSecond), 1u);
  EXPECT_EQ(asks({use(1, {kFirst}, 33), use(2, {kSecond}, 31)}, 2, kSecond), 1u);
  EXPECT_FALSE(asks({use(1, {kFirst}, 32), use(2, {kSecond}, 32)}, 2, kSecond));
  EXPECT_FALSE(asks({use(1, {kFirst}, 24), use(2, {kSecond}, 40)}, 2, kSecond))
      << "it has its share";
}

TEST(DiskShares, MadeUpModelsTakeNothingFromAnotherDomain) {
  std::vector<DiskUse> all{use(1, {kFirst}, 32)};
  for (std::uint32_t id = 2; id < 10; ++id) all.push_back(use(id, {kSecond}, 4));
  const auto gives = asks(all, 20, kSecond);
  ASSERT_TRUE(gives);
  EXPECT_NE(*gives, 1u);
}

TEST(DiskShares, WithinADomainTheLargerMakesWay) {
  EXPECT_EQ(asks({use(1, {kFirst}, 60), use(2, {kFirst}, 4)}, 2, kFirst), 1u);
  EXPECT_FALSE(asks({use(1, {kFirst}, 60), use(2, {kFirst}, 4)}, 1, kFirst));
  EXPECT_FALSE(asks({use(1, {kFirst}, 32), use(2, {kFirst}, 32)}, 2, kFirst));
}

TEST(DiskShares, TheLongestIdleGoesFirst) {
  std::vector<DiskUse> all{use(1, {kFirst}, 50), use(2, {kFirst}, 6), use(3, {kFirst}, 4)};
  all[1].idle = all[2].idle = true;
  EXPECT_EQ(asks(all, 4, kFirst), 2u);
  all[1].used = TimePoint{9};
  EXPECT_EQ(asks(all, 4, kFirst), 3u);
  all[2].free = false;
  EXPECT_EQ(asks(all, 4, kFirst), 2u) << "the other has its hands full";
}

TEST(DiskShares, WhoJoinedTheClassOfAnotherGetsNothingOfIt) {
  std::vector<DiskUse> all{use(1, {kFirst, kSecond}, 40), use(2, {kSecond}, 4),
                           use(3, {kSecond}, 20)};
  EXPECT_EQ(asks(all, 2, kSecond), 3u);
  all[2].free = false;
  EXPECT_FALSE(asks(all, 2, kSecond));
  all[0].idle = true;
  EXPECT_FALSE(asks(all, 2, kSecond)) << "nor while the other is away";
}

TEST(DiskShares, WhatADomainWithinItsShareUsesStays) {
  // The second domain has named the first one's model as well, and has many other blocks.
  const std::vector<DiskUse> all{use(1, {kFirst, kSecond}, 40), use(2, {kSecond}, 24)};
  EXPECT_EQ(asks(all, 3, DomainId(3)), 2u) << "though it is the smaller one";
}

}  // namespace
}  // namespace kvd::store
