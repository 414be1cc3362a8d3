// The life of requests on one engine, and what rotation does to it.
#include "kvd/core/controller.hpp"

#include <gtest/gtest.h>

#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

TEST(Controller, RunsOneRequestFromPrefillToTheEnd) {
  World world(small_pool());
  const EngineId engine = world.attach(small_model());
  ASSERT_EQ(world.submit(engine, 1, 6, 3), ErrorCode::kOk);

  world.step_until_granted(engine);
  ASSERT_EQ(world.engines.at(engine).reply.run.size(), 1u);
  const RunEntry first = world.engines.at(engine).reply.run[0];
  EXPECT_TRUE(first.prefill);
  EXPECT_EQ(first.tokens, Tokens(6));
  world.run_and_step(engine);
  EXPECT_FALSE(world.engines.at(engine).reply.run[0].prefill);
  EXPECT_EQ(world.engines.at(engine).reply.run[0].present, Tokens(6));
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
  const ControllerStatus status = world.controller->status(world.now);
  EXPECT_EQ(status.requests.size(), 0u);
  EXPECT_EQ(status.tiers[0].free, status.tiers[0].capacity);
}

TEST(Controller, HoldsARequestUntilTheSlabIsAcknowledged) {
  World world(small_pool());
  world.acknowledge = false;
  const EngineId engine = world.attach(small_model());
  ASSERT_EQ(world.submit(engine, 1, 4, 4), ErrorCode::kOk);
  world.step(engine);
  EXPECT_TRUE(world.engines.at(engine).reply.run.empty());
  ASSERT_EQ(world.engines.at(engine).reply.hold.size(), 1u);
  EXPECT_EQ(world.engines.at(engine).reply.hold[0].reason, Hold::kSlabNotMapped);
  ASSERT_EQ(world.sent.size(), 1u);
  world.feed(SlabMapped{engine, world.sent[0].slab});
  world.step(engine);
  EXPECT_EQ(world.engines.at(engine).reply.run.size(), 1u);
}

TEST(Controller, RotatesMoreRequestsThanHbmHolds) {
  World world(small_pool(2, 32));
  const EngineId engine = world.attach(small_model());
  for (std::uint64_t r = 1; r <= 6; ++r) ASSERT_EQ(world.submit(engine, r, 8, 12), ErrorCode::kOk);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
  EXPECT_GT(world.controller->status(world.now).counters.rotations_out, 0u);
  EXPECT_EQ(world.controller->status(world.now).counters.requests_finished, 6u);
}

TEST(Controller, TheCheckRejectsACorruptedCopy) {
  Controller::Config config = small_pool(2, 32);
  config.tuning.rotation.eager = false;  // a copy made ahead may never be read
  World world(config);
  const EngineId engine = world.attach(small_model());
  for (std::uint64_t r = 1; r <= 6; ++r) ASSERT_EQ(world.submit(engine, r, 8, 12), ErrorCode::kOk);
  world.corrupt_next = true;
  ASSERT_TRUE(run_to_end(world));
  EXPECT_GT(world.errors, 0u);
}

TEST(Controller, FcfsFinishesToo) {
  Controller::Config config = small_pool(2, 32);
  config.tuning.rotation.policy = "fcfs";
  World world(config);
  const EngineId engine = world.attach(small_model());
  for (std::uint64_t r = 1; r <= 6; ++r) ASSERT_EQ(world.submit(engine, r, 8, 12), ErrorCode::kOk);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(Controller, APipelinedVictimIsCopiedOnlyAfterItsIteration) {
  World world(small_pool(2, 32));
  const EngineId a = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 4, 20), ErrorCode::kOk);
  world.step_until_granted(a);
  world.run_and_step(a);  // request 1 decodes in iteration 2, which now runs
  ASSERT_EQ(world.code(world.command(a, Rotate{RequestId(1), true})), ErrorCode::kOk);
  Step running;
  running.iteration_finished = 1;
  running.iteration_running = 2;
  const auto reply = world.command(a, running);
  ASSERT_EQ(world.code(reply), ErrorCode::kOk);
  EXPECT_TRUE(std::get<StepReply>(reply->body).run.empty());
  world.finish_copies();
  EXPECT_EQ(world.controller->status(world.now).counters.rotations_out, 0u);

  world.execute(a);
  world.step(a);
  world.finish_copies();
  EXPECT_EQ(world.controller->status(world.now).counters.rotations_out, 1u);
  EXPECT_EQ(world.code(world.command(a, Rotate{RequestId(1), false})), ErrorCode::kOk);
  world.finish_copies();
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(Controller, AFailedCopyLosesNothing) {
  for (std::size_t n = 1; n <= 6; ++n) {
    World world(small_pool(2, 32), n);
    const EngineId engine = world.attach(small_model());
    for (std::uint64_t r = 1; r <= 6; ++r) {
      ASSERT_EQ(world.submit(engine, r, 8, 12), ErrorCode::kOk);
    }
    world.fail_copies = n;
    ASSERT_TRUE(run_to_end(world)) << "copy " << n << " failed";
    EXPECT_EQ(world.errors, 0u);
    EXPECT_EQ(world.controller->status(world.now).counters.copy_failures, 1u);
  }
}

/// Like step(), for an engine that asks for the next iteration while one still runs.
std::optional<Reply> pipelined_step(World& world, EngineId id, std::uint64_t running,
                                    std::vector<StepReport> reports) {
  Step step;
  step.iteration_finished = running - 1;
  step.iteration_running = running;
  step.reports = std::move(reports);
  return world.command(id, step);
}

TEST(Controller, APipelinedEngineGetsItsNextIterationWhileOneRuns) {
  World world(small_pool(2, 32));
  const EngineId a = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 4, 8), ErrorCode::kOk);
  world.step_until_granted(a);  // iteration 1: the prefill
  for (std::int64_t running = 1; running <= 6; ++running) {
    // Iteration `running` holds 4 tokens after the first, one more after each later one.
    std::vector<StepReport> reports;
    if (running > 1) reports = {{RequestId(1), Tokens(2 + running), false}};
    const auto reply =
        pipelined_step(world, a, static_cast<std::uint64_t>(running), std::move(reports));
    ASSERT_EQ(world.code(reply), ErrorCode::kOk) << "iteration " << running;
    const auto& step = std::get<StepReply>(reply->body);
    ASSERT_EQ(step.run.size(), 1u) << "iteration " << running;
    EXPECT_FALSE(step.run[0].prefill);
    EXPECT_EQ(step.run[0].present, Tokens(3 + running));
  }
  const auto early = pipelined_step(world, a, 7, {{RequestId(1), Tokens(10), false}});
  EXPECT_EQ(world.code(early), ErrorCode::kInvalidArgument) << "tokens of the running iteration";
}

TEST(Controller, AStepWhoseReplyWasLostCanBeAskedAgain) {
  World world(small_pool(2, 32));
  const EngineId a = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 4, 8), ErrorCode::kOk);
  world.step_until_granted(a);
  world.execute(a);
  auto& engine = world.engines.at(a);
  Step step;
  step.iteration_finished = engine.reply.iteration;
  step.reports = engine.reports;
  ASSERT_EQ(world.code(world.command(a, step)), ErrorCode::kOk);  // its reply is lost
  engine.reports.clear();
  const auto again = world.command(a, step = Step{step.iteration_finished, 0, {}, {}});
  ASSERT_EQ(world.code(again), ErrorCode::kOk);
  engine.reply = std::get<StepReply>(again->body);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(Controller, BothTiersFullIsNoDeadEnd) {
  World world(small_pool(2, 2));  // 16 slots each; three requests grow to 12 slots
  const EngineId a = world.attach(small_model());
  for (std::uint64_t r = 1; r <= 5; ++r) ASSERT_EQ(world.submit(a, r, 4, 20), ErrorCode::kOk);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

}  // namespace
}  // namespace kvd::test
