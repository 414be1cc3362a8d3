#include "kvd/daemon/sessions/groups.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kernels/device/host/host_backend.hpp"
#include "tests/unit/kvd/daemon/small_controller.hpp"

namespace kvd::daemon {
namespace {

constexpr DomainId kDomain{1};
constexpr std::uint32_t kRanks = 3;

wire::JoinGroup join(std::uint32_t rank, std::uint64_t group = 9) {
  wire::JoinGroup made;
  made.group = group;
  made.ranks = kRanks;
  made.rank = rank;
  return made;
}

core::Attach application(std::uint32_t layers = 4, DeviceId device = {}) {
  core::Attach attach;
  attach.devices = core::Devices(device);
  attach.name = "ranks";
  attach.domain = kDomain;
  attach.model_class = core::ModelClass{layers, 2, 4, Bytes(64), kRanks};
  return attach;
}

class GroupsTest : public testing::Test {
 protected:
  explicit GroupsTest(std::uint32_t devices = 1) : events_(small_controller(devices), clock_) {
    events_.carry_out_with([](const core::Effect&) {});
  }

  /// Lets the rank in, and makes a session of it.
  Peer& seat(std::uint32_t rank, DeviceId device = {}) {
    const core::AttachGrant grant = sut_.enter(join(rank), application(4, device)).value();
    Peer peer;
    peer.engine = grant.engine;
    peer.generation = grant.generation;
    peer.group = EngineId(grant.engine.value - rank);
    peer.rank = rank;
    peer.device = device;
    peer.page = std::make_shared<shm::ServedClientPage>(shm::ServedClientPage::create().value());
    sessions_.add(std::move(peer));
    return *sessions_.find(grant.engine);
  }

  ManualClock clock_;
  std::shared_ptr<kernels::DeviceBackend> backend_ =
      kernels::HostBackend::create({}, clock_).value();
  EventFeed events_;
  SessionTable sessions_;
  Groups sut_{sessions_, events_, {backend_}};
};

TEST_F(GroupsTest, RanksGetNeighbouringNumbersOfOneEngine) {
  const Peer& second = seat(1);
  const Peer& first = seat(0);
  EXPECT_EQ(second.engine.value, first.engine.value + 1);
  EXPECT_EQ(second.group, first.engine);
  EXPECT_EQ(sut_.ranks(first.engine), kRanks);
  EXPECT_EQ(sut_.ranks(EngineId(first.engine.value + 50)), 1u);
  EXPECT_EQ(events_.status().engines.size(), 1u);
}

TEST_F(GroupsTest, ARankThatIsThereOrDiffersIsRefused) {
  seat(0);
  EXPECT_EQ(sut_.enter(join(0), application()).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(sut_.enter(join(1), application(6)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(sut_.enter(join(1), application()).ok());
}

// A rank that does not wait for its layers would read bytes that are not there yet.
TEST_F(GroupsTest, LayersStreamWhereAllRanksWaitForThem) {
  for (const std::uint32_t waiting : {kRanks, kRanks - 1}) {
    const std::uint64_t group = 20 + waiting;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      core::Attach attach = application();
      attach.streams_layers = rank < waiting;
      ASSERT_TRUE(sut_.enter(join(rank, group), attach).ok());
    }
    EXPECT_EQ(sut_.named(join(0, group), kDomain, 0)->streams_layers, waiting == kRanks);
  }
}

TEST_F(GroupsTest, SeatsOfRanksYetToComeCountAsTaken) {
  seat(0);
  SessionCounts all{1, 0}, of_domain{1, 0}, of_other{0, 0};
  sut_.add_missing(kDomain, all, of_domain);
  EXPECT_EQ(all.open, 3u);
  EXPECT_EQ(of_domain.open, 3u);
  sut_.add_missing(DomainId(2), all, of_other);
  EXPECT_EQ(of_other.open, 0u);
}

// Else half a group would keep everybody out for as long as its one process lives.
TEST_F(GroupsTest, SeatsOfRanksThatDoNotComeAreFreeAgain) {
  seat(0);
  EXPECT_EQ(sut_.seats(join(1), kDomain, 0), 0u) << "its own is kept for it";
  clock_.advance(std::chrono::seconds(10));
  SessionCounts all{1, 0}, of_domain{1, 0};
  sut_.add_missing(kDomain, all, of_domain);
  EXPECT_EQ(all.open, 1u);
  EXPECT_EQ(of_domain.open, 1u);
  EXPECT_EQ(sut_.seats(join(1), kDomain, 0), 1u) << "late, it takes one like anybody";
  EXPECT_EQ(sut_.seats(join(0, 77), kDomain, 0), kRanks);
  EXPECT_TRUE(sut_.enter(join(1), application()).ok());
}

TEST_F(GroupsTest, AGroupWhoseOnlyRankCouldNotBeToldIsForgotten) {
  const core::AttachGrant grant = sut_.enter(join(0), application()).value();
  sut_.forget_rank(grant.engine, 0);
  EXPECT_EQ(sut_.find(grant.engine), nullptr);
  EXPECT_TRUE(events_.status().engines.empty());
}

TEST_F(GroupsTest, CommandsWaitForAllRanksPingsDoNot) {
  const Peer& first = seat(0);
  EXPECT_EQ(sut_.check(first, core::Step{}).code(), ErrorCode::kWouldBlock);
  EXPECT_TRUE(sut_.check(first, core::Ping{}).ok());
  seat(1);
  seat(2);
  EXPECT_TRUE(sut_.check(first, core::Step{}).ok());
}

TEST_F(GroupsTest, ASlabCountsOnceTheLastRankHasSaidSo) {
  std::vector<Peer*> ranks = {&seat(0), &seat(1), &seat(2)};
  const EngineId engine = ranks[0]->engine;
  const SlabIndex slab(1);
  sut_.on_slab(*ranks[0], slab, true);  // never sent: passed over
  sut_.expect(engine, slab, DeviceId(0));
  sut_.on_slab(*ranks[0], slab, false);
  sut_.on_slab(*ranks[1], slab, false);
  sut_.on_slab(*ranks[1], slab, false);  // twice is once
  EXPECT_TRUE(sut_.find(engine)->slabs.contains(slab));
  sut_.on_slab(*ranks[2], slab, false);
  EXPECT_FALSE(sut_.find(engine)->slabs.contains(slab));
}

class GroupsOnTwoDevices : public GroupsTest {
 protected:
  GroupsOnTwoDevices() : GroupsTest(2) {}
};

TEST_F(GroupsOnTwoDevices, TheControllerLearnsWhereTheRanksAreWithTheLast) {
  const EngineId engine = seat(0).engine;
  EXPECT_FALSE(sut_.find(engine)->apart());
  seat(2, DeviceId(1));
  EXPECT_EQ(events_.status().engines.at(0).ranks.devices, std::vector{DeviceId(0)});
  seat(1);
  EXPECT_TRUE(sut_.find(engine)->apart());
  EXPECT_EQ(events_.status().engines.at(0).ranks.devices, (std::vector{DeviceId(0), DeviceId(1)}));
}

TEST_F(GroupsOnTwoDevices, OnlyRanksOnTheSlabsDeviceHaveToMapIt) {
  const std::vector<Peer*> ranks = {&seat(0), &seat(1, DeviceId(1)), &seat(2)};
  const EngineId engine = ranks[0]->engine;
  const SlabIndex slab(1);
  sut_.expect(engine, slab, DeviceId(0));
  sut_.on_slab(*ranks[0], slab, false);
  sut_.on_slab(*ranks[1], slab, false);  // was never sent it
  EXPECT_TRUE(sut_.find(engine)->slabs.contains(slab));
  sut_.on_slab(*ranks[2], slab, false);
  EXPECT_FALSE(sut_.find(engine)->slabs.contains(slab));
}

TEST_F(GroupsTest, EachRanksPageFollowsTheFencesOfTheGroup) {
  const Peer& first = seat(0);
  const Peer& second = seat(1);
  sut_.find(first.engine)->fences->page().fence_h2d() = 5;
  sut_.raise_fences(first.engine);
  EXPECT_EQ(first.page->fence_h2d().load(), 5u);
  EXPECT_EQ(second.page->fence_h2d().load(), 5u);
  sut_.raise_fences(EngineId(first.engine.value + 50));  // no group: nothing to do
}

}  // namespace
}  // namespace kvd::daemon
