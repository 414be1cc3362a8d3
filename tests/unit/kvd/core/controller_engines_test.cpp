// Several engines, or several models, on one pool: promises, deaths, silence, regions.
#include <gtest/gtest.h>

#include "kvd/core/controller.hpp"
#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Under lvf any request that lags gets a victim, whatever copies are saved up.
Controller::Config lvf_pool() {
  Controller::Config config = small_pool(2, 32);
  config.tuning.rotation.policy = "lvf";
  return config;
}

TEST(Controller, TakesVictimsOfAnotherEngineOnlyAtItsOwnStep) {
  World world(lvf_pool());
  const EngineId a = world.attach(small_model());
  const EngineId b = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 28, 4), ErrorCode::kOk);  // it takes all 16 slots of the pool
  world.step_until_granted(a);
  world.pass(seconds(1));
  world.run_and_step(a);
  ASSERT_EQ(world.submit(b, 1, 8, 4), ErrorCode::kOk);
  world.pass(seconds(10));
  world.step(b);
  EXPECT_TRUE(world.engines.at(b).reply.run.empty());
  ControllerStatus status = world.controller->status(world.now);
  EXPECT_EQ(status.counters.promises, 1u);
  EXPECT_EQ(status.counters.rotations_out, 0u) << "the owner has not stepped yet";
  ASSERT_EQ(world.engines.at(b).reply.hold.size(), 1u);
  EXPECT_EQ(world.engines.at(b).reply.hold[0].reason, Hold::kPromised);
  EXPECT_EQ(status.counters.rotation_blocked_promise, 1u) << "one claim, one step";
  world.step(b);
  EXPECT_EQ(world.controller->status(world.now).counters.rotation_blocked_promise, 2u);

  world.run_and_step(a);
  EXPECT_TRUE(world.engines.at(a).reply.run.empty());
  world.finish_copies();
  world.step(b);
  EXPECT_EQ(world.engines.at(b).reply.run.size(), 1u);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(Controller, APromiseExpiresWithItsNeed) {
  World world(lvf_pool());
  const EngineId a = world.attach(small_model());
  const EngineId b = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 28, 4), ErrorCode::kOk);
  world.step_until_granted(a);
  world.pass(seconds(1));
  world.run_and_step(a);
  ASSERT_EQ(world.submit(b, 1, 8, 4), ErrorCode::kOk);
  world.pass(seconds(10));
  world.step(b);
  ASSERT_EQ(world.controller->status(world.now).counters.promises, 1u);
  ASSERT_EQ(world.code(world.command(b, Abort{RequestId(1)})), ErrorCode::kOk);
  world.engines.at(b).requests.clear();
  world.step(b);
  EXPECT_EQ(world.controller->status(world.now).counters.promises_expired, 1u);
  world.run_and_step(a);
  EXPECT_EQ(world.engines.at(a).reply.run.size(), 1u) << "its victim stays";
}

TEST(Controller, KeepsSlotsOfADeadEngineUntilItIsGoneAndZeroed) {
  World world(small_pool(2, 32));
  const EngineId a = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 8, 4), ErrorCode::kOk);
  world.step_until_granted(a);
  world.run_and_step(a);
  const Bytes before = world.controller->status(world.now).tiers[0].free;
  world.die(a);
  EXPECT_EQ(world.controller->status(world.now).tiers[0].free, before);
  EXPECT_GT(world.controller->status(world.now).tiers[0].quarantined, Bytes(0));
  world.bury(a);
  EXPECT_EQ(world.controller->status(world.now).tiers[0].free, before) << "not zeroed yet";
  world.finish_copies();
  const ControllerStatus status = world.controller->status(world.now);
  EXPECT_EQ(status.tiers[0].free, status.tiers[0].capacity);
  EXPECT_TRUE(world.hbm.empty());
}

TEST(Controller, LeasesZeroedRegionsAndTakesThemBack) {
  World world(small_pool(4));
  const EngineId a = world.attach(small_model(), DomainId(1), true);
  const auto reply = world.command(a, AllocateRegion{Bytes(9000)});
  ASSERT_EQ(world.code(reply), ErrorCode::kOk);
  const auto region = std::get<RegionReply>(reply->body);
  EXPECT_EQ(region.slabs, 3u);
  ASSERT_EQ(world.sent.size(), 3u);
  EXPECT_EQ(world.sent[2].position, 2u);
  EXPECT_EQ(world.controller->region_bytes(a), Bytes(4096) * 3);
  EXPECT_EQ(world.code(world.command(a, AllocateRegion{Bytes(8192)})), ErrorCode::kOutOfMemory);
  EXPECT_EQ(world.code(world.command(a, ReleaseRegion{RegionId(99)})), ErrorCode::kNotFound);
  EXPECT_EQ(world.code(world.command(a, ReleaseRegion{region.region})), ErrorCode::kOk);

  // Waits for the scrub of what came back, then gets it.
  const auto again = world.command(a, AllocateRegion{Bytes(4096) * 4});
  EXPECT_FALSE(again.has_value());
  world.finish_copies();
  EXPECT_EQ(world.controller->region_bytes(a), Bytes(4096) * 4);
}

TEST(Controller, ARegionThatCannotBeHadInTimeIsRefused) {
  World world(small_pool(2));
  const EngineId a = world.attach(small_model(), DomainId(1), true);
  const auto first = world.command(a, AllocateRegion{Bytes(8192)});
  ASSERT_EQ(world.code(first), ErrorCode::kOk);
  world.command(a, ReleaseRegion{std::get<RegionReply>(first->body).region});
  EXPECT_FALSE(world.command(a, AllocateRegion{Bytes(4096)}, milliseconds(5)).has_value());
  world.pass(milliseconds(6));
  world.feed(Tick{});
  EXPECT_EQ(world.code(world.replies.rbegin()->second), ErrorCode::kDeadlineExceeded);
}

TEST(Controller, ASilentEngineLeavesTheSupply) {
  World world(lvf_pool());
  const EngineId a = world.attach(small_model());
  const EngineId b = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 28, 4), ErrorCode::kOk);
  world.step_until_granted(a);
  world.run_and_step(a);
  world.pass(seconds(6));
  world.feed(Tick{});
  ASSERT_EQ(world.submit(b, 1, 8, 4), ErrorCode::kOk);
  world.pass(seconds(20));
  world.step(b);
  EXPECT_EQ(world.controller->status(world.now).counters.promises, 0u);
  world.run_and_step(a);  // it speaks again
  world.pass(seconds(10));
  world.step(b);
  EXPECT_EQ(world.controller->status(world.now).counters.promises, 1u);
}

TEST(Controller, TwoModelsShareOnePool) {
  World world(small_pool(4, 64));
  const EngineId a = world.attach(small_model());
  const EngineId b = world.attach({2, 1, 8, Bytes(32)});  // slots of 256 B
  for (std::uint64_t r = 1; r <= 4; ++r) {
    ASSERT_EQ(world.submit(a, r, 10, 12), ErrorCode::kOk);
    ASSERT_EQ(world.submit(b, r, 20, 30), ErrorCode::kOk);
  }
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(Controller, ASlabFullOfAnotherModelIsEmptiedForANewOne) {
  World world(small_pool(2, 64));
  const EngineId a = world.attach(small_model());
  const EngineId b = world.attach({2, 1, 8, Bytes(32)});
  // Four requests of a spread over both slabs; the end of two leaves holes of a's class only.
  for (std::uint64_t r = 1; r <= 4; ++r) ASSERT_EQ(world.submit(a, r, 7, 20), ErrorCode::kOk);
  world.step_until_granted(a);
  world.run_and_step(a);
  for (const std::uint64_t r : {std::uint64_t{2}, std::uint64_t{4}}) {
    ASSERT_EQ(world.code(world.command(a, Finish{RequestId(r)})), ErrorCode::kOk);
    world.engines.at(a).requests.erase(r);
    std::erase_if(world.engines.at(a).reply.run,
                  [&](const RunEntry& entry) { return entry.request == RequestId(r); });
  }
  ASSERT_EQ(world.submit(b, 1, 20, 8), ErrorCode::kOk);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

}  // namespace
}  // namespace kvd::test
