// Regions in an HBM full of requests: blocks can go to DRAM, so they make way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvd/core/controller.hpp"
#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr Bytes kSlab{4096};
constexpr Nanoseconds kPatience = seconds(60);

/// Two engines with two requests each, one slab (of four) a request, and a third without a model.
struct Crowd {
  World world;
  EngineId a, b, level1;

  explicit Crowd(Controller::Config config = small_pool(4, 64)) : world(std::move(config)) {
    a = world.attach(small_model());
    b = world.attach(small_model());
    level1 = world.attach({}, DomainId(1), true);
    for (const EngineId engine : {a, b}) {
      for (std::uint64_t r = 1; r <= 2; ++r) {
        EXPECT_EQ(world.submit(engine, r, 12, 8), ErrorCode::kOk);
      }
      world.step_until_granted(engine);
      world.run_and_step(engine);
    }
    EXPECT_EQ(world.controller->status(world.now).tiers[0].free, Bytes(0));
  }

  std::optional<Reply> ask(std::int64_t slabs, Nanoseconds timeout = kPatience) {
    return world.command(level1, AllocateRegion{kSlab * slabs}, timeout);
  }
  void round() {
    world.pass(milliseconds(10));
    world.run_and_step(a);
    world.run_and_step(b);
    world.finish_copies();
  }
  /// How many rounds pass until the region is there.
  [[nodiscard]] bool leased(int limit) {
    for (int i = 0; i < limit && world.regions.empty(); ++i) round();
    return !world.regions.empty();
  }
  [[nodiscard]] Counters counters() const { return world.controller->status(world.now).counters; }
};

TEST(ControllerRegions, RequestsOfTwoEnginesMakeWayAndFinishLater) {
  Crowd crowd;
  World& world = crowd.world;
  EXPECT_FALSE(crowd.ask(2).has_value());
  EXPECT_TRUE(world.retires());
  ASSERT_TRUE(crowd.leased(4));
  EXPECT_EQ(world.controller->region_bytes(crowd.level1), kSlab * 2);
  EXPECT_FALSE(world.retires());
  EXPECT_GE(crowd.counters().rotations_out, 2u);
  EXPECT_EQ(crowd.counters().requests_finished, 0u) << "they made way, they did not just end";
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(crowd.counters().requests_finished, 4u);
  EXPECT_EQ(world.errors, 0u);
}

TEST(ControllerRegions, ManyWaitingRequestsDoNotTakeTheMemoryBack) {
  Crowd crowd;
  World& world = crowd.world;
  for (const EngineId engine : {crowd.a, crowd.b}) {
    for (std::uint64_t r = 3; r <= 8; ++r)
      ASSERT_EQ(world.submit(engine, r, 12, 8), ErrorCode::kOk);
  }
  world.pass(seconds(10));  // all are late
  EXPECT_FALSE(crowd.ask(3).has_value());
  ASSERT_TRUE(crowd.leased(6));
  world.release_oldest_region();
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(ControllerRegions, ASlabIsKeptUntilTheOthersAreEmptyToo) {
  Crowd crowd;
  World& world = crowd.world;
  EXPECT_FALSE(crowd.ask(4).has_value());
  for (int i = 0; i < 4; ++i) {  // b never steps: half of HBM comes free and stays free
    world.pass(milliseconds(10));
    world.run_and_step(crowd.a);
    world.finish_copies();
    EXPECT_TRUE(world.engines.at(crowd.a).reply.run.empty());
  }
  EXPECT_EQ(world.controller->status(world.now).tiers[0].slabs_unassigned, 2u);
  ASSERT_TRUE(crowd.leased(3));
}

TEST(ControllerRegions, APrefillLeavesOnceItIsComplete) {
  World world(small_pool(2, 64));
  const EngineId a = world.attach(small_model());
  const EngineId level1 = world.attach({}, DomainId(1), true);
  ASSERT_EQ(world.submit(a, 1, 28, 4), ErrorCode::kOk);
  world.step_until_granted(a);
  EXPECT_FALSE(world.command(level1, AllocateRegion{kSlab}, kPatience).has_value());
  EXPECT_EQ(world.controller->status(world.now).counters.promises, 0u);
  for (int i = 0; i < 3 && world.regions.empty(); ++i) {
    world.run_and_step(a);
    world.finish_copies();
  }
  EXPECT_EQ(world.regions.size(), 1u);
  EXPECT_EQ(world.errors, 0u);
}

TEST(ControllerRegions, MemoryElsewhereTakesNoPromiseBack) {
  World world(small_pool(3, 64));
  const EngineId a = world.attach(small_model());
  const EngineId b = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 12, 8), ErrorCode::kOk);
  world.step_until_granted(a);
  world.run_and_step(a);
  const EngineId level1 = world.attach({}, DomainId(1), true);
  EXPECT_FALSE(world.command(level1, AllocateRegion{kSlab * 3}, kPatience).has_value());
  world.step(b);
  const Counters counters = world.controller->status(world.now).counters;
  EXPECT_EQ(counters.promises, 1u);
  EXPECT_EQ(counters.promises_expired, 0u);
  world.run_and_step(a);
  world.finish_copies();
  EXPECT_EQ(world.regions.size(), 1u);
}

TEST(ControllerRegions, WhatComesFreeForARegionIsPromisedToNoRequest) {
  World world(small_pool(2, 64));
  const EngineId a = world.attach(small_model());
  const EngineId b = world.attach(small_model());
  for (const std::uint64_t r : {std::uint64_t{1}, std::uint64_t{2}}) {
    ASSERT_EQ(world.submit(a, r, 12, 4), ErrorCode::kOk);
  }
  world.step_until_granted(a);
  world.run_and_step(a);
  const EngineId level1 = world.attach({}, DomainId(1), true);
  EXPECT_FALSE(world.command(level1, AllocateRegion{kSlab}, kPatience).has_value());
  ASSERT_EQ(world.submit(b, 1, 12, 4), ErrorCode::kOk);
  world.step(b);
  ASSERT_EQ(world.engines.at(b).reply.hold.size(), 1u);
  EXPECT_EQ(world.engines.at(b).reply.hold[0].reason, Hold::kWaiting);
}

TEST(ControllerRegions, WhatCanNeverBeHadIsRefusedAtOnce) {
  Crowd crowd;
  ASSERT_FALSE(crowd.ask(2).has_value());
  ASSERT_TRUE(crowd.leased(4));
  EXPECT_EQ(crowd.world.code(crowd.ask(3)), ErrorCode::kOutOfMemory);
  EXPECT_FALSE(crowd.world.retires());
}

TEST(ControllerRegions, AnotherDomainsRequestsDoNotMakeWay) {
  Crowd crowd;
  const EngineId stranger = crowd.world.attach({}, DomainId(2), true);
  const auto reply = crowd.world.command(stranger, AllocateRegion{kSlab}, kPatience);
  EXPECT_EQ(crowd.world.code(reply), ErrorCode::kOutOfMemory);
  EXPECT_FALSE(crowd.world.retires());
}

TEST(ControllerRegions, AtItsMaximumADomainsOwnRequestsMakeWay) {
  Controller::Config config = small_pool(6, 64);
  config.hbm_quotas[DomainId(1)].maximum = kSlab * 4;
  World world(config);
  const EngineId a = world.attach(small_model());
  for (std::uint64_t r = 1; r <= 4; ++r) ASSERT_EQ(world.submit(a, r, 12, 8), ErrorCode::kOk);
  world.step_until_granted(a);
  EXPECT_EQ(world.code(world.command(a, AllocateRegion{kSlab * 5}, kPatience)),
            ErrorCode::kQuotaExceeded)
      << "more than the maximum is refused at once";
  EXPECT_FALSE(world.command(a, AllocateRegion{kSlab}, kPatience).has_value());
  for (int i = 0; i < 8 && world.regions.empty(); ++i) {
    world.run_and_step(a);
    world.finish_copies();
  }
  ASSERT_EQ(world.regions.size(), 1u);
  EXPECT_FALSE(world.retires());
  const auto slabs = world.controller->status(world.now).slabs[0];
  EXPECT_LE(std::count_if(slabs.begin(), slabs.end(),
                          [](const auto& slab) { return slab.domain == DomainId(1); }),
            4);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(ControllerRegions, ExpiryNamesTheSilentEngineAndLetsGo) {
  Crowd crowd;
  World& world = crowd.world;
  EXPECT_FALSE(crowd.ask(1, milliseconds(50)).has_value());
  EXPECT_EQ(crowd.counters().promises, 1u);
  world.pass(milliseconds(60));
  world.feed(Tick{});
  ASSERT_EQ(world.code(world.latest), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(std::get<Error>(world.latest->body).message, HasSubstr("has not stepped"));
  EXPECT_FALSE(world.retires());
  world.run_and_step(crowd.a);
  world.run_and_step(crowd.b);
  EXPECT_EQ(crowd.counters().promises_expired, 1u);
  EXPECT_EQ(world.engines.at(crowd.a).reply.run.size(), 2u) << "its victim stays";
  EXPECT_EQ(world.engines.at(crowd.b).reply.run.size(), 2u) << "its victim stays";
}

TEST(ControllerRegions, WithoutRoomInDramRequestsRunOnAndTheExpirySaysSo) {
  World world(small_pool(2, 1));
  const EngineId a = world.attach(small_model());
  const EngineId level1 = world.attach({}, DomainId(1), true);
  ASSERT_EQ(world.submit(a, 1, 24, 4), ErrorCode::kOk);  // 14 slots, DRAM has 8
  world.step_until_granted(a);
  world.run_and_step(a);
  EXPECT_FALSE(world.command(level1, AllocateRegion{kSlab}, milliseconds(50)).has_value());
  for (int i = 0; i < 3; ++i) {
    world.run_and_step(a);
    EXPECT_EQ(world.engines.at(a).reply.run.size(), 1u);
  }
  const Counters counters = world.controller->status(world.now).counters;
  EXPECT_EQ(counters.rotation_blocked_dram, 0u) << "not even tried";
  world.pass(milliseconds(60));
  world.feed(Tick{});
  ASSERT_EQ(world.code(world.latest), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(std::get<Error>(world.latest->body).message, HasSubstr("DRAM"));

  EXPECT_FALSE(world.command(level1, AllocateRegion{kSlab}, kPatience).has_value());
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.regions.size(), 1u) << "the request's end frees its slabs";
  EXPECT_EQ(world.errors, 0u);
}

TEST(ControllerRegions, TheDeathOfAVictimServesTheRegion) {
  Crowd crowd;
  World& world = crowd.world;
  EXPECT_FALSE(crowd.ask(2).has_value());
  world.run_and_step(crowd.a);  // its copies are under way
  world.die(crowd.a);
  world.die(crowd.b);
  EXPECT_TRUE(world.regions.empty());
  world.bury(crowd.a);
  world.bury(crowd.b);
  world.finish_copies();
  EXPECT_EQ(world.regions.size(), 1u);
  EXPECT_FALSE(world.retires());
  const ControllerStatus status = world.controller->status(world.now);
  EXPECT_EQ(status.tiers[0].free, status.tiers[0].capacity - kSlab * 2);
}

TEST(ControllerRegions, TheDeathOfTheAskerLetsGo) {
  Crowd crowd;
  World& world = crowd.world;
  EXPECT_FALSE(crowd.ask(2).has_value());
  world.die(crowd.level1);
  EXPECT_FALSE(world.retires());
  world.bury(crowd.level1);
  crowd.round();
  EXPECT_EQ(crowd.counters().rotations_out, 0u);
  EXPECT_EQ(world.engines.at(crowd.a).reply.run.size(), 2u);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(ControllerRegions, AnAskerThatFallsSilentIsStillAnswered) {
  Crowd crowd;
  World& world = crowd.world;
  EXPECT_FALSE(crowd.ask(1, seconds(8)).has_value());
  const std::size_t answered = world.replies.size();
  world.pass(seconds(6));
  world.feed(Tick{});
  EXPECT_EQ(world.replies.size(), answered);
  world.pass(seconds(3));
  world.feed(Tick{});
  EXPECT_EQ(world.code(world.latest), ErrorCode::kWouldBlock);
  EXPECT_THAT(std::get<Error>(world.latest->body).message, HasSubstr("has been silent"));
}

TEST(ControllerRegions, TwoRegionsAreServedInOrder) {
  Crowd crowd;
  World& world = crowd.world;
  const EngineId other = world.attach({}, DomainId(1), true);
  EXPECT_FALSE(crowd.ask(2).has_value());
  EXPECT_FALSE(world.command(other, AllocateRegion{kSlab}, kPatience).has_value());
  for (int i = 0; i < 8 && world.regions.size() < 2; ++i) crowd.round();
  ASSERT_EQ(world.regions.size(), 2u);
  EXPECT_EQ(world.regions[0].first, crowd.level1);
  EXPECT_FALSE(world.retires());
  world.release_oldest_region();
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(ControllerRegions, WhatAnEarlierDaemonLentCountsUntilItIsFreed) {
  World world(small_pool(4, 64));
  Attach attach;
  attach.domain = DomainId(1);
  attach.orphaned = kSlab * 3;
  const EngineId engine = world.controller->attach(attach, world.now)->engine;
  world.engines[engine].id = engine;
  const auto ask = [&](std::int64_t slabs) {
    return world.code(world.command(engine, AllocateRegion{kSlab * slabs}));
  };
  EXPECT_EQ(ask(2), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(ask(1), ErrorCode::kOk);
  EXPECT_EQ(ask(1), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(world.code(world.command(engine, ReleaseOrphaned{kSlab * 3})), ErrorCode::kOk);
  EXPECT_EQ(ask(3), ErrorCode::kOk);
}

/// A kvd that finds two slabs of one region of the kvd before, 0 and 2 of four.
struct Left {
  World world{small_pool(4, 4)};
  const RegionName name{BootId{{1}}, RegionId(7)};
  const Digest proof{{{9}}};
  EngineId engine;

  explicit Left(DomainId domain = DomainId(1)) {
    world.feed(AdoptRegions{{{name, proof, domain, {SlabIndex(2), SlabIndex(0)}}}});
    engine = world.attach({}, DomainId(1), true);
  }
  ErrorCode claim(EngineId by, const Digest& with) {
    return world.code(world.command(by, ClaimRegion{name, with}));
  }
  [[nodiscard]] Bytes free() const { return world.controller->status(world.now).tiers[0].free; }
};

TEST(ControllerLeftRegions, TheEngineThatProvesItHasTheSameSlabsAgain) {
  Left left;
  EXPECT_EQ(left.free(), kSlab * 2) << "nobody else may have them";
  EXPECT_EQ(left.claim(left.engine, Digest{{{8}}}), ErrorCode::kNotFound);
  EXPECT_EQ(left.claim(left.world.attach({}, DomainId(2), true), left.proof), ErrorCode::kNotFound);
  const auto reply = left.world.command(left.engine, ClaimRegion{left.name, left.proof});
  ASSERT_EQ(left.world.code(reply), ErrorCode::kOk);
  EXPECT_EQ(std::get<RegionReply>(reply->body).slabs, 2u);
  EXPECT_EQ(left.world.controller->region_bytes(left.engine), kSlab * 2);
  const EngineId other = left.world.attach({}, DomainId(1), true);
  EXPECT_EQ(left.claim(other, left.proof), ErrorCode::kNotFound) << "it was claimed";
  left.world.pass(seconds(11));
  left.world.feed(Tick{});
  EXPECT_EQ(left.free(), kSlab * 2);
  const RegionId id = std::get<RegionReply>(reply->body).region;
  EXPECT_EQ(left.world.code(left.world.command(left.engine, ReleaseRegion{id})), ErrorCode::kOk);
  left.world.finish_copies();
  EXPECT_EQ(left.free(), kSlab * 4);
}

TEST(ControllerLeftRegions, ASessionThatMissedTheAnswerHasItAgainHoweverLate) {
  Left left;
  const ClaimRegion claim{left.name, left.proof};
  const auto first = left.world.command(left.engine, claim);
  ASSERT_EQ(left.world.code(first), ErrorCode::kOk);
  left.world.pass(seconds(11));
  left.world.feed(Tick{});
  const auto again = left.world.command(left.engine, claim);
  ASSERT_EQ(left.world.code(again), ErrorCode::kOk);
  const RegionId id = std::get<RegionReply>(first->body).region;
  EXPECT_EQ(std::get<RegionReply>(again->body).region, id);
  EXPECT_EQ(std::get<RegionReply>(again->body).slabs, 2u);
  EXPECT_EQ(left.world.controller->region_bytes(left.engine), kSlab * 2);
  EXPECT_EQ(left.world.code(left.world.command(left.engine, ReleaseRegion{id})), ErrorCode::kOk);
  EXPECT_EQ(left.claim(left.engine, left.proof), ErrorCode::kNotFound) << "it has handed it back";
}

TEST(ControllerLeftRegions, ARegionStandsWhereItStoodHoweverOftenItIsPlacedThere) {
  Left left;
  const auto region = std::get<RegionReply>(
      left.world.command(left.engine, ClaimRegion{left.name, left.proof})->body);
  const auto space = std::get<ValueReply>(left.world.command(left.engine, OpenSpace{4})->body);
  const auto place = [&](std::vector<std::uint32_t> positions) {
    return left.world.code(left.world.command(
        left.engine, PlaceRegion{RegionId(space.value), region.region, std::move(positions)}));
  };
  EXPECT_EQ(place({3, 1}), ErrorCode::kOk);
  EXPECT_EQ(place({3, 1}), ErrorCode::kOk);
  EXPECT_EQ(place({1, 3}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(place({0, 2}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(place({3, 9}), ErrorCode::kInvalidArgument);
}

TEST(ControllerLeftRegions, WhatNobodyClaimsGetsNewMemory) {
  Left left;
  left.world.pass(seconds(11));
  left.world.feed(Tick{});
  left.world.finish_renewals();
  EXPECT_EQ(left.claim(left.engine, left.proof), ErrorCode::kNotFound);
  EXPECT_EQ(left.free(), kSlab * 4);
  EXPECT_EQ(left.world.renewed_in_use, 2u) << "its engine may still compute there";
}

TEST(ControllerLeftRegions, NobodysAreLetGoAtOnce) {
  Left left{DomainId()};
  left.world.finish_renewals();
  EXPECT_EQ(left.free(), kSlab * 4);
  EXPECT_EQ(left.world.renewed_in_use, 2u);
}

}  // namespace
}  // namespace kvd::test
