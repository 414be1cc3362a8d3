// Nobody waits for ever beside memory that could be had; where it cannot, somebody is told.
#include <gtest/gtest.h>

#include "kvd/core/controller.hpp"
#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// The policies a daemon has by default; slabs of 4 KiB.
Controller::Config daemon_pool(std::uint32_t hbm_slabs, pool::Quotas hbm_quotas = {}) {
  Controller::Config config = small_pool(hbm_slabs);
  config.hbm_quotas = std::move(hbm_quotas);
  config.tuning.placement.policy = "orbitflow";
  config.tuning.admission.policy = "layerkv";
  return config;
}

/// Slots of 1,280 B: three a slab, and 256 B are left over.
ModelClass slack_model() { return {4, 2, 4, Bytes(160)}; }

TEST(ControllerStandstill, AnEmptySlabOfAnotherClassCountsWhole) {
  World world(daemon_pool(4));
  const EngineId first = world.attach(slack_model());
  ASSERT_EQ(world.submit(first, 1, 20, 4), ErrorCode::kOk);  // all 12 slots of the pool
  ASSERT_TRUE(run_to_end(world));
  const EngineId second = world.attach(small_model());
  ASSERT_EQ(world.submit(second, 1, 60, 4), ErrorCode::kOk);  // all 32
  EXPECT_TRUE(run_to_end(world, 100)) << "the pool is empty";
  EXPECT_EQ(world.errors, 0u);
}

TEST(ControllerStandstill, APromptThatFillsTheDomainsMaximumComesIn) {
  World world(daemon_pool(8, {{DomainId(1), {Bytes(0), Bytes(4096) * 2}}}));
  const EngineId a = world.attach(small_model());
  EXPECT_EQ(world.submit(a, 1, 30, 3), ErrorCode::kOutOfMemory);
  ASSERT_EQ(world.submit(a, 2, 30, 2), ErrorCode::kOk);  // 16 slots
  EXPECT_TRUE(run_to_end(world, 100));
}

TEST(ControllerStandstill, WhatOthersAreGuaranteedIsNotToBeHad) {
  World world(daemon_pool(8, {{DomainId(2), {Bytes(4096) * 6, Bytes(INT64_MAX)}}}));
  const EngineId a = world.attach(small_model());
  EXPECT_EQ(world.submit(a, 1, 30, 3), ErrorCode::kOutOfMemory) << "it could never run";
  ASSERT_EQ(world.submit(a, 2, 30, 2), ErrorCode::kOk);
  EXPECT_TRUE(run_to_end(world, 100));
}

TEST(ControllerStandstill, TheHeadOfTheQueueComesInWhereNobodyDecodes) {
  World world(daemon_pool(8));
  const EngineId holder = world.attach(small_model(), DomainId(1), true);
  ASSERT_EQ(world.code(world.command(holder, AllocateRegion{Bytes(4096) * 5})), ErrorCode::kOk);
  const EngineId a = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 46, 2), ErrorCode::kOk);  // all 24 slots beside the region
  EXPECT_TRUE(run_to_end(world, 100));
}

/// Half of the pool is a region, and the request needs all of it.
struct Standing {
  Standing() {
    holder = world.attach(small_model(), DomainId(1), true);
    EXPECT_EQ(world.code(world.command(holder, AllocateRegion{Bytes(4096) * 2})), ErrorCode::kOk);
    engine = world.attach(small_model());
    EXPECT_EQ(world.submit(engine, 1, 60, 4), ErrorCode::kOk);
  }
  void wait(int times) {
    for (int i = 0; i < times; ++i) {
      world.pass(seconds(1));
      world.step(engine);
      world.feed(Tick{});
    }
  }
  /// Requests whose engine heard that they ended for want of memory.
  std::vector<RequestId> told() const {
    std::vector<RequestId> out;
    for (const auto& [to, reply] : world.replies) {
      const auto* step = std::get_if<StepReply>(&reply.body);
      if (!step) continue;
      for (const HoldEntry& entry : step->hold) {
        if (entry.reason == Hold::kOutOfMemory) out.push_back(entry.request);
      }
    }
    return out;
  }
  Counters counters() { return world.controller->status(world.now).counters; }

  World world{daemon_pool(4)};
  EngineId holder, engine;
};

TEST(ControllerStandstill, IsToldOnceAndEndsTheLatestRequest) {
  Standing sut;
  ASSERT_EQ(sut.world.submit(sut.engine, 2, 60, 4), ErrorCode::kOk);
  sut.wait(4);
  EXPECT_EQ(sut.counters().standstills, 0u);
  sut.wait(50);
  EXPECT_EQ(sut.counters().standstills, 1u);
  EXPECT_EQ(sut.counters().requests_given_up, 0u);
  EXPECT_EQ(std::count_if(
                sut.world.notes.begin(), sut.world.notes.end(),
                [](const Note& note) { return note.text.find("2 requests wait for memory") == 0; }),
            1);
  sut.wait(10);
  ASSERT_EQ(sut.counters().requests_given_up, 1u);
  EXPECT_EQ(sut.told(), std::vector{RequestId(2)}) << "the latest";
  const ControllerStatus status = sut.world.controller->status(sut.world.now);
  ASSERT_EQ(status.requests.size(), 1u);
  EXPECT_EQ(status.requests[0].key.request, RequestId(1));
}

TEST(ControllerStandstill, IsOverOnceThereIsRoom) {
  Standing sut;
  sut.wait(30);
  sut.world.release_oldest_region();
  sut.world.finish_copies();
  EXPECT_TRUE(run_to_end(sut.world, 100));
  EXPECT_EQ(sut.counters().requests_given_up, 0u);
}

TEST(ControllerStandstill, OneThatHoldsMemoryEndsBeforeOneThatCameLater) {
  Controller::Config config = daemon_pool(2);
  config.dram.slabs = 1;
  World world(std::move(config));
  const EngineId a = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 12, 4), ErrorCode::kOk);
  world.step_until_granted(a);
  world.execute(a);
  world.step(a);
  ASSERT_EQ(world.code(world.command(a, Rotate{RequestId(1), true})), ErrorCode::kOk);
  world.run_and_step(a);
  world.finish_copies();
  const EngineId holder = world.attach(small_model(), DomainId(1), true);
  world.command(holder, AllocateRegion{Bytes(4096) * 2});
  world.finish_copies();  // what the request left behind is zeroed
  ASSERT_EQ(world.regions.size(), 1u);
  ASSERT_EQ(world.code(world.command(a, Rotate{RequestId(1), false})), ErrorCode::kOk);
  ASSERT_EQ(world.submit(a, 2, 4, 4), ErrorCode::kOk);
  for (int i = 0; i < 70; ++i) {
    world.pass(seconds(1));
    world.step(a);
    world.feed(Tick{});
  }
  const ControllerStatus status = world.controller->status(world.now);
  ASSERT_EQ(status.requests.size(), 1u);
  EXPECT_EQ(status.requests[0].key.request, RequestId(2)) << "the other held blocks in DRAM";
}

TEST(Controller, ADomainHasABoundOnItsRequestsWhateverItsEnginesHave) {
  Controller::Config config = small_pool(4);
  config.max_requests_per_domain = 3;
  World world(std::move(config));
  const EngineId a = world.attach(small_model()), b = world.attach(small_model());
  const EngineId other = world.attach(small_model(), DomainId(2));
  ASSERT_EQ(world.submit(a, 1, 4, 4), ErrorCode::kOk);
  ASSERT_EQ(world.submit(a, 2, 4, 4), ErrorCode::kOk);
  ASSERT_EQ(world.submit(b, 1, 4, 4), ErrorCode::kOk);
  EXPECT_EQ(world.submit(b, 2, 4, 4), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(world.submit(other, 1, 4, 4), ErrorCode::kOk);
  EXPECT_EQ(world.code(world.command(a, Abort{RequestId(2)})), ErrorCode::kOk);
  EXPECT_EQ(world.submit(b, 2, 4, 4), ErrorCode::kOk);
}

}  // namespace
}  // namespace kvd::test
