#include "kvd/daemon/config/domains.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace kvd::daemon {
namespace {

using testing::HasSubstr;

constexpr gid_t kNoGroup = 9;

DomainConfig named(const std::string& name, std::vector<uid_t> uids) {
  DomainConfig domain;
  domain.name = name;
  domain.uids = std::move(uids);
  return domain;
}

/// The test decides which domains have engines.
class DomainsTest : public testing::Test {
 protected:
  Result<Domains::Entry> enter(uid_t uid) {
    return sut_.enter(configured_, uid, kNoGroup,
                      [this](DomainId id) { return busy_.contains(id); });
  }
  DomainId id_of(uid_t uid) {
    const auto entry = enter(uid);
    EXPECT_TRUE(entry.ok());
    return entry.ok() ? entry->id : DomainId();
  }

  std::vector<DomainConfig> configured_ = Config().domains;
  Domains sut_{configured_};
  std::set<DomainId> busy_;
};

TEST_F(DomainsTest, ByDefaultEachUserHasItsOwnAndKeepsIt) {
  const auto first = enter(1000);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->name, "uid-1000");
  EXPECT_NE(id_of(1001), first->id);
  EXPECT_EQ(id_of(1000), first->id);
}

TEST_F(DomainsTest, AConfiguredOneTakesItsUsersFirst) {
  configured_.insert(configured_.begin(), named("team", {7, 8}));
  sut_ = Domains(configured_);
  EXPECT_EQ(id_of(7), DomainId(1));
  EXPECT_EQ(id_of(8), DomainId(1));
  EXPECT_EQ(id_of(9), DomainId(3))
      << "the number of the place that makes users' domains is nobody's";
}

TEST_F(DomainsTest, WithoutSuchAPlaceStrangersAreRefused) {
  configured_ = {named("team", {7})};
  const auto stranger = enter(8);
  ASSERT_FALSE(stranger.ok());
  EXPECT_EQ(stranger.error().code, ErrorCode::kPermissionDenied);
}

TEST_F(DomainsTest, TheLongestKnownUserWithoutEnginesMakesWayAndItsNumberIsNotUsedAgain) {
  std::set<DomainId> seen;
  for (uid_t uid = 0; uid < kMaxUserDomains; ++uid) seen.insert(id_of(uid));
  busy_ = {id_of(0), id_of(2)};
  const DomainId second = id_of(1);
  const DomainId stranger = id_of(5000);
  EXPECT_FALSE(seen.contains(stranger));
  EXPECT_EQ(id_of(0), *busy_.begin());
  EXPECT_NE(id_of(1), second) << "it was forgotten";
}

TEST_F(DomainsTest, NoMoreUsersThanThereMayBe) {
  for (uid_t uid = 0; uid < kMaxUserDomains; ++uid) busy_.insert(id_of(uid));
  const auto stranger = enter(5000);
  ASSERT_FALSE(stranger.ok());
  EXPECT_EQ(stranger.error().code, ErrorCode::kQuotaExceeded);
  EXPECT_THAT(stranger.error().message, HasSubstr("[[domain]]"));
  EXPECT_TRUE(enter(3).ok());
}

TEST_F(DomainsTest, AUsersQuotaIsThatOfThePlaceItCameFrom) {
  configured_[0].hbm_maximum = 3 * kMiB;
  const DomainId id = id_of(1000);
  configured_[0].hbm_maximum = 5 * kMiB;  // reloaded
  const core::Requota quotas = sut_.quotas(configured_);
  ASSERT_EQ(quotas.hbm.size(), 2u);
  EXPECT_EQ(quotas.hbm.at(id).maximum, 5 * kMiB);
  EXPECT_EQ(quotas.hbm.at(id).guarantee, Bytes());
}

// One account runs the engines of all users, each with a group of its own.
TEST_F(DomainsTest, AGroupStandsForAUserWhereTheConfigurationSaysSo) {
  DomainConfig engines = named("engines", {50});
  engines.per_group = true;
  configured_.insert(configured_.begin(), engines);
  sut_ = Domains(configured_);
  const auto as = [&](gid_t group) {
    return sut_.enter(configured_, 50, group, [](DomainId) { return true; }).value();
  };
  EXPECT_EQ(as(7).name, "gid-7");
  EXPECT_NE(as(7).id, as(8).id);
  EXPECT_EQ(as(7).id, as(7).id);
  EXPECT_NE(id_of(7), as(7).id) << "user 7 is somebody else";
}

TEST_F(DomainsTest, GroupsCountOnlyWhereTheyStandForUsers) {
  EXPECT_FALSE(Domains::by_group(configured_, 1000, kNoGroup));
  configured_[0].per_user = false;
  configured_[0].per_group = true;
  configured_.insert(configured_.begin(), named("team", {7}));
  EXPECT_TRUE(Domains::by_group(configured_, 1000, kNoGroup));
  EXPECT_FALSE(Domains::by_group(configured_, 7, kNoGroup));
}

// Otherwise the first could have all seats before a second comes.
TEST_F(DomainsTest, AUserWhoHasYetToComeSharesTheSeats) {
  const auto count = [&] {
    return sut_.count(configured_, [this](DomainId id) { return busy_.contains(id); });
  };
  busy_.insert(id_of(1000));
  EXPECT_EQ(count(), 2u);
  for (uid_t uid = 0; uid + 1 < kMaxUserDomains; ++uid) busy_.insert(id_of(uid));
  EXPECT_EQ(count(), kMaxUserDomains) << "nobody more can come";
  configured_ = {named("team", {7}), named("others", {8})};
  sut_ = Domains(configured_);
  EXPECT_EQ(count(), 2u) << "nor here";
}

}  // namespace
}  // namespace kvd::daemon
