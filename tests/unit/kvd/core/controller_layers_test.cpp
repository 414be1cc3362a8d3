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
  for (int i = 0; i < 200 && counters(world_).streams < 2; ++i) world_.iterate(engine_);
  world_.corrupt_next = true;
  world_.execute(engine_);
  EXPECT_GT(world_.errors, 0u);
}

TEST_P(Streaming, RequestsLargerThanHbmEnd) {
  // HBM holds 64 tokens of one request. One request runs alone, then two together, with long
  // prompts and long answers.
  struct Case {
    std::int64_t prompt, answer;
    std::uint64_t count;
  };
  for (const Case& c : {Case{8, 96, 1}, Case{150, 50, 2}, Case{230, 10, 1}, Case{10, 230, 2}}) {
    SCOPED_TRACE(std::to_string(c.prompt) + " + " + std::to_string(c.answer) + " tokens, " +
                 std::to_string(c.count) + " requests");
    World world(streaming(std::get<0>(GetParam()), 8, 256));
    const EngineId engine = world.attach(deep_model());
    world.engines.at(engine).pipelined = std::get<1>(GetParam());
    for (std::uint64_t r = 1; r <= c.count; ++r) {
      ASSERT_EQ(world.submit(engine, r, c.prompt, c.answer), ErrorCode::kOk);
    }
    ASSERT_TRUE(run_to_end(world));
    EXPECT_EQ(world.errors, 0u);
    EXPECT_GT(counters(world).streams, 5u);
    world.finish_copies();
    const ControllerStatus status = world.controller->status(world.now);
    EXPECT_EQ(status.tiers[0].free, status.tiers[0].capacity);
    EXPECT_EQ(status.tiers[1].free, status.tiers[1].capacity);
  }
}

TEST(Layers, ALoneRequestMayUseWhatIsKeptForPromptsThatPrefillLayerByLayer) {
  for (const std::string rotation : {"unified", "fcfs"}) {
    SCOPED_TRACE(rotation);
    Controller::Config config = small_pool(16, 64);
    config.tuning.rotation.policy = rotation;
    config.tuning.admission.policy = "layerkv";
    World world(config);
    const EngineId engine = world.attach(deep_model());
    // HBM holds 128 tokens; a twentieth is kept.
    ASSERT_EQ(world.submit(engine, 1, 8, 118), ErrorCode::kOk);
    ASSERT_TRUE(run_to_end(world, 2000));
    ASSERT_EQ(world.submit(engine, 2, 124, 2), ErrorCode::kOk);
    ASSERT_TRUE(run_to_end(world, 2000));
    EXPECT_EQ(world.errors, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Streaming,
                         testing::Combine(testing::Values("orbitflow", "deepspeed", "flexgen",
                                                          "flexgen_plus", "dynamic_heuristic"),
                                          testing::Bool()));

TEST(Layers, TheStatusShowsThePlanThatRuns) {
  World world(streaming("deepspeed", 9));
  const EngineId engine = world.attach(deep_model());
  EXPECT_TRUE(world.controller->status(world.now).plans.empty());
  for (std::uint64_t r = 1; r <= 2; ++r) ASSERT_EQ(world.submit(engine, r, 20, 20), ErrorCode::kOk);
  for (int i = 0; i < 200 && counters(world).streams < 3; ++i) world.iterate(engine);
  const ControllerStatus status = world.controller->status(world.now);
  ASSERT_EQ(status.plans.size(), 1u);
  const PlanStatus& plan = status.plans[0];
  EXPECT_EQ(plan.engine, engine);
  EXPECT_GT(plan.number, 0u);
  EXPECT_EQ(plan.policy, "deepspeed");
  EXPECT_FALSE(plan.fallback);
  EXPECT_GT(plan.steps_left, 0);
  EXPECT_GT(plan.step_s, 0);
  ASSERT_EQ(plan.requests.size(), 2u);
  bool streams = false;
  for (const RunEntry& run : world.engines.at(engine).reply.run) {
    const auto entry = std::find_if(plan.requests.begin(), plan.requests.end(),
                                    [&](const auto& e) { return e.request == run.request; });
    ASSERT_NE(entry, plan.requests.end());
    EXPECT_EQ(entry->distance, run.distance);
    for (std::size_t i = 0; i < entry->in_dram.size(); ++i) {
      EXPECT_EQ(entry->in_dram[i], (i + 1) * run.distance);
    }
    streams = streams || !entry->in_dram.empty();
  }
  EXPECT_TRUE(streams);
}

TEST(Layers, AnAbortInAStreamedIterationKeepsSlotsUntilItsFetchesEnd) {
  World world(streaming("deepspeed", 9));
  const EngineId engine = world.attach(deep_model());
  for (std::uint64_t r = 1; r <= 2; ++r) ASSERT_EQ(world.submit(engine, r, 20, 20), ErrorCode::kOk);
  for (int i = 0; i < 200 && counters(world).streams < 3; ++i) world.iterate(engine);
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
    world.iterate(engine, 8);
    ASSERT_EQ(world.code(world.command(engine, Rotate{RequestId(1), true})), ErrorCode::kOk);
    world.run_and_step(engine);  // the iteration under way ends first
    // With 4 tokens a block, 21 to 23 tokens in two groups: only the open block stays, or six
    // blocks.
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
  world.iterate(engine, 6);
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

TEST(Layers, NoneStreamToAnEngineThatDoesNotWaitForThem) {
  for (const bool waits : {true, false}) {
    Controller::Config config = streaming("orbitflow", 7);
    config.tuning.admission.policy = "layerkv";
    World world(config);
    world.streams_layers = waits;
    const EngineId engine = world.attach(deep_model());
    for (std::uint64_t r = 1; r <= 3; ++r) {
      ASSERT_EQ(world.submit(engine, r, 20, 20), ErrorCode::kOk);
    }
    ASSERT_TRUE(run_to_end(world));
    EXPECT_EQ(world.errors, 0u);
    EXPECT_EQ(counters(world).streams > 0, waits);
    EXPECT_EQ(counters(world).plans > 0, waits);
    const auto larger_than_hbm = world.submit(engine, 4, 50, 20);
    EXPECT_EQ(larger_than_hbm, waits ? ErrorCode::kOk : ErrorCode::kOutOfMemory);
  }
}

TEST(Layers, WhoIsPausedWhenStreamingEndsGetsABlockBeforeItsNextToken) {
  // It must hold at any place within its blocks at which the paused request stands.
  std::size_t paused = 0;
  for (int steps = 0; steps < 40; ++steps) {
    Controller::Config config = streaming("orbitflow", 7);
    config.tuning.slo["default"].tbt = milliseconds(11);
    World world(config);
    world.link_bytes_per_s = 20e3;
    const EngineId engine = world.attach(deep_model());
    ASSERT_EQ(world.submit(engine, 1, 20, 20), ErrorCode::kOk);
    ASSERT_EQ(world.submit(engine, 2, 20, 20), ErrorCode::kOk);
    world.iterate(engine, steps);
    for (const HoldEntry& entry : world.engines.at(engine).reply.hold) {
      paused += entry.reason == Hold::kPaused ? 1u : 0u;
    }
    Tuning tuning = world.controller->tuning();
    tuning.placement.policy = "none";
    world.feed(Retune{tuning});
    ASSERT_TRUE(run_to_end(world));
    EXPECT_EQ(world.errors, 0u);
  }
  EXPECT_GT(paused, 0u);
}

TEST(Layers, WhoLeavesKeepsItsCopiesWhenOthersMakeWay) {
  // The copies of three prompts fill DRAM; the first leaves, and its open block needs room there.
  Controller::Config config = small_pool(6, 3);
  config.tuning.rotation.b_xfer = Bytes(65536);
  World world(config);
  const EngineId engine = world.attach(small_model());
  for (std::uint64_t r = 1; r <= 3; ++r) ASSERT_EQ(world.submit(engine, r, 16, 8), ErrorCode::kOk);
  world.iterate(engine, 4);
  ASSERT_EQ(world.controller->status(world.now).tiers[1].free, Bytes(0));
  ASSERT_EQ(world.code(world.command(engine, Rotate{RequestId(1), true})), ErrorCode::kOk);
  world.run_and_step(engine);
  EXPECT_EQ(world.last_copied, 2u) << "the open block in both groups";
  world.finish_copies();
  ASSERT_EQ(world.code(world.command(engine, Rotate{RequestId(1), false})), ErrorCode::kOk);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(Layers, ABatchThatIsTooSlowGoesOnWithoutOneWhichComesBackAfterAnEnd) {
  Controller::Config config = streaming("orbitflow", 7);
  config.tuning.slo["default"].tbt = milliseconds(11);  // steps take 10
  World world(config);
  world.link_bytes_per_s = 20e3;  // a block takes 13 ms, so any layer that streams is too slow
  const EngineId engine = world.attach(deep_model());
  for (std::uint64_t r = 1; r <= 2; ++r) ASSERT_EQ(world.submit(engine, r, 20, 20), ErrorCode::kOk);
  bool held = false, shown = false;
  for (int i = 0; i < 100; ++i) {
    world.iterate(engine);
    for (const HoldEntry& entry : world.engines.at(engine).reply.hold) {
      held = held || entry.reason == Hold::kPaused;
    }
    for (const PlanStatus& plan : world.controller->status(world.now).plans) {
      for (const auto& entry : plan.requests) shown = shown || entry.paused;
    }
  }
  EXPECT_TRUE(held);
  EXPECT_TRUE(shown);
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

TEST(Layers, ALongPromptPrefillsInChunksNotInBlocks) {
  // HBM has 32 blocks. One request holds most of it, and the other's prompt takes 24 blocks.
  Controller::Config config = small_pool(16, 64);
  config.tuning.rotation.policy = "fcfs";
  config.tuning.admission.policy = "layerkv";
  World world(config);
  const EngineId engine = world.attach(deep_model());
  ASSERT_EQ(world.submit(engine, 1, 40, 60), ErrorCode::kOk);
  ASSERT_EQ(world.submit(engine, 2, 96, 4), ErrorCode::kOk);
  int steps = 0;
  const auto tokens = [&] {
    for (const RequestStatus& r : world.controller->status(world.now).requests) {
      if (r.key.request == RequestId(2)) return r.tokens;
    }
    return std::int64_t{0};
  };
  for (; steps < 60 && tokens() < 96; ++steps) world.iterate(engine);
  EXPECT_EQ(counters(world).layerwise, 1u);
  EXPECT_LT(steps, 20) << "24 blocks";
  EXPECT_EQ(world.errors, 0u);
}

}  // namespace
}  // namespace kvd::test
