// Blocks in DRAM while their request runs: copies made ahead, streamed layers, pauses, prompts that
// prefill into DRAM. Engines check every block they read.
#include <gtest/gtest.h>

#include "kvd/core/controller.hpp"
#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::milliseconds;

/// 8 layer groups of 4 tokens: slots of 256 B, 16 to a slab.
ModelClass deep_model() { return {8, 1, 4, Bytes(64)}; }

Controller::Config streaming(const std::string& policy, std::uint32_t hbm_slabs,
                             std::uint32_t dram_slabs = 64) {
  Controller::Config config = small_pool(hbm_slabs, dram_slabs);
  config.tuning.placement.policy = policy;
  config.tuning.placement.window_min = 4;
  config.tuning.rotation.policy = "fcfs";
  config.tuning.slo["default"].tbt = std::chrono::seconds(1);
  return config;
}

Counters counters(const World& world) { return world.controller->status(world.now).counters; }

class Streaming : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  void SetUp() override {
    // Two requests of 40 tokens are 160 slots; HBM holds 112.
    engine_ = world_.attach(deep_model());
    world_.engines.at(engine_).pipelined = std::get<1>(GetParam());
    for (std::uint64_t r = 1; r <= 2; ++r) {
      ASSERT_EQ(world_.submit(engine_, r, 20, 20), ErrorCode::kOk);
    }
  }
  World world_{streaming(std::get<0>(GetParam()), 7)};
  EngineId engine_;
};

TEST_P(Streaming, EngineReadsWhatItWroteWhereverLayersLive) {
  ASSERT_TRUE(run_to_end(world_));
  EXPECT_EQ(world_.errors, 0u);
  EXPECT_GT(counters(world_).streams, 5u);
  EXPECT_LT(counters(world_).rotations_out, counters(world_).streams);
  world_.finish_copies();
  const ControllerStatus status = world_.controller->status(world_.now);
  EXPECT_EQ(status.tiers[0].free, status.tiers[0].capacity);
  EXPECT_EQ(status.tiers[1].free, status.tiers[1].capacity);
}

TEST_P(Streaming, TheCheckRejectsACorruptedFetch) {
  for (int i = 0; i < 200 && counters(world_).streams < 2; ++i) {
    world_.pass(milliseconds(10));
    world_.run_and_step(engine_);
    world_.finish_copies();
  }
  world_.corrupt_next = true;
  world_.execute(engine_);
  EXPECT_GT(world_.errors, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, Streaming,
                         testing::Combine(testing::Values("orbitflow", "deepspeed", "flexgen",
                                                          "flexgen_plus", "dynamic_heuristic"),
                                          testing::Bool()));

TEST(Layers, AnAbortInAStreamedIterationKeepsSlotsUntilItsFetchesEnd) {
  World world(streaming("deepspeed", 9));
  const EngineId engine = world.attach(deep_model());
  for (std::uint64_t r = 1; r <= 2; ++r) ASSERT_EQ(world.submit(engine, r, 20, 20), ErrorCode::kOk);
  for (int i = 0; i < 200 && counters(world).streams < 3; ++i) {
    world.pass(milliseconds(10));
    world.run_and_step(engine);
    world.finish_copies();
  }
  ASSERT_EQ(counters(world).streams, 3u);
  EXPECT_EQ(world.code(world.command(engine, Abort{RequestId(2)})), ErrorCode::kOk);
  const auto draining = [&](std::size_t tier) {
    const auto slots = world.controller->status(world.now).tiers[tier].slots_by_state;
    return slots[static_cast<std::size_t>(pool::SlotState::kDraining)];
  };
  EXPECT_GT(draining(0), 0u);
  EXPECT_GT(draining(1), 0u);
  world.engines.at(engine).requests.erase(2);
  ASSERT_TRUE(run_to_end(world));
  world.finish_copies();
  EXPECT_EQ(draining(0) + draining(1), 0u);
  EXPECT_EQ(world.errors, 0u);
}

TEST(Layers, SlotsOfAnAbortedCopyStayUntilTheIterationEnds) {
  World world(small_pool(8, 64));
  const EngineId engine = world.attach(small_model());
  ASSERT_EQ(world.submit(engine, 1, 16, 8), ErrorCode::kOk);
  for (int i = 0; i < 10 && counters(world).blocks_synced == 0; ++i) world.run_and_step(engine);
  ASSERT_GT(counters(world).blocks_synced, 0u);
  const auto draining = [&] {
    const auto slots = world.controller->status(world.now).tiers[0].slots_by_state;
    return slots[static_cast<std::size_t>(pool::SlotState::kDraining)];
  };
  EXPECT_EQ(world.code(world.command(engine, Abort{RequestId(1)})), ErrorCode::kOk);
  world.engines.at(engine).requests.erase(1);
  const auto before = draining();
  EXPECT_GT(before, 0u);
  world.finish_copies();
  EXPECT_EQ(draining(), before) << "the engine may still be in the iteration it was granted";
  world.run_and_step(engine);
  EXPECT_EQ(draining(), 0u);
}

TEST(Layers, WhoLeavesMovesOnlyWhatWasNotCopiedAhead) {
  for (const bool eager : {true, false}) {
    Controller::Config config = small_pool(8, 64);
    config.tuning.rotation.eager = eager;
    World world(config);
    const EngineId engine = world.attach(small_model());
    ASSERT_EQ(world.submit(engine, 1, 16, 20), ErrorCode::kOk);
    for (int i = 0; i < 8; ++i) {
      world.pass(milliseconds(10));
      world.run_and_step(engine);
      world.finish_copies();
    }
    ASSERT_EQ(world.code(world.command(engine, Rotate{RequestId(1), true})), ErrorCode::kOk);
    world.run_and_step(engine);  // the iteration under way ends first
    // 21 to 23 tokens of 4 a block in two groups: the open block alone, or six.
    EXPECT_EQ(world.last_copied, eager ? 2u : 12u);
    world.finish_copies();
    ASSERT_EQ(world.code(world.command(engine, Rotate{RequestId(1), false})), ErrorCode::kOk);
    ASSERT_TRUE(run_to_end(world));
    EXPECT_EQ(world.errors, 0u);
  }
}

TEST(Layers, CopiesMadeAheadMakeWayForWhoHasNoOtherPlace) {
  // DRAM as large as one request; the copies of the one that stays fill it.
  Controller::Config config = small_pool(6, 3);
  World world(config);
  const EngineId engine = world.attach(small_model());
  for (std::uint64_t r = 1; r <= 2; ++r) ASSERT_EQ(world.submit(engine, r, 16, 8), ErrorCode::kOk);
  for (int i = 0; i < 6; ++i) {
    world.pass(milliseconds(10));
    world.run_and_step(engine);
    world.finish_copies();
  }
  EXPECT_GT(counters(world).blocks_synced, 0u);
  for (std::uint64_t r = 1; r <= 2; ++r) {
    EXPECT_EQ(world.code(world.command(engine, Rotate{RequestId(r), true})), ErrorCode::kOk);
    world.run_and_step(engine);
    world.finish_copies();
  }
  EXPECT_EQ(counters(world).rotations_out, 2u);
  for (std::uint64_t r = 1; r <= 2; ++r) world.command(engine, Rotate{RequestId(r), false});
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(Layers, ABatchThatIsTooSlowGoesOnWithoutOneWhichComesBackAfterAnEnd) {
  Controller::Config config = streaming("orbitflow", 7);
  config.tuning.slo["default"].tbt = milliseconds(11);  // steps take 10
  World world(config);
  world.link_bytes_per_s = 20e3;  // a block takes 13 ms: whatever streams is too slow
  const EngineId engine = world.attach(deep_model());
  for (std::uint64_t r = 1; r <= 2; ++r) ASSERT_EQ(world.submit(engine, r, 20, 20), ErrorCode::kOk);
  bool held = false;
  for (int i = 0; i < 100; ++i) {
    world.pass(milliseconds(10));
    world.run_and_step(engine);
    world.finish_copies();
    for (const HoldEntry& entry : world.engines.at(engine).reply.hold) {
      held = held || entry.reason == Hold::kPaused;
    }
  }
  EXPECT_TRUE(held);
  EXPECT_GT(counters(world).pauses, 0u);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
  EXPECT_EQ(counters(world).requests_finished, 2u);
}

TEST(Layers, PromptsPrefillIntoDramWhileHbmIsFull) {
  Controller::Config config = small_pool(16, 64);
  config.tuning.rotation.policy = "fcfs";
  config.tuning.admission.policy = "layerkv";
  World world(config);
  const EngineId engine = world.attach(deep_model());
  for (std::uint64_t r = 1; r <= 6; ++r) ASSERT_EQ(world.submit(engine, r, 24, 16), ErrorCode::kOk);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
  EXPECT_GT(counters(world).layerwise, 0u);
  EXPECT_EQ(counters(world).requests_finished, 6u);
}

}  // namespace
}  // namespace kvd::test
