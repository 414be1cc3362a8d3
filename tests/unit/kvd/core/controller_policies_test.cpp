// The policies at work in the Controller: what it tells them, and that it does what they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/baselines/all_policies.hpp"
#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using planner::Decision;
using std::chrono::milliseconds;
using std::chrono::seconds;

Controller::Config pool_with(Decision decision, std::string_view policy) {
  Controller::Config config = small_pool(2, 32);
  auto& tuning = config.tuning;
  (decision == Decision::kRotation ? tuning.rotation.policy : tuning.admission.policy) = policy;
  return config;
}

void finish_six(Decision decision, std::string_view policy) {
  SCOPED_TRACE(std::string(policy));
  World world(pool_with(decision, policy));
  const EngineId a = world.attach(small_model());
  const EngineId b = world.attach(small_model());
  for (std::uint64_t r = 1; r <= 3; ++r) {
    ASSERT_EQ(world.submit(a, r, 8, 12), ErrorCode::kOk);
    ASSERT_EQ(world.submit(b, r, 11, 20), ErrorCode::kOk);
  }
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
  EXPECT_EQ(world.controller->status(world.now).counters.requests_finished, 6u);
}

TEST(ControllerPolicies, EveryRotationPolicyBringsEverybodyToTheEnd) {
  for (const auto policy : planner::all_policies().names(Decision::kRotation)) {
    finish_six(Decision::kRotation, policy);
  }
}

TEST(ControllerPolicies, EveryAdmissionPolicyBringsEverybodyToTheEnd) {
  for (const auto policy : planner::all_policies().names(Decision::kAdmission)) {
    finish_six(Decision::kAdmission, policy);
  }
}

TEST(ControllerPolicies, PromptsThatAreLateAlreadyStandLastWhereGoodputCounts) {
  for (const bool goodput : {true, false}) {
    Controller::Config config = small_pool(2, 32);
    config.tuning.slo["default"].ttft = milliseconds(200);
    config.tuning.rotation.overload = goodput ? "goodput" : "ttft";
    World world(config);
    const EngineId engine = world.attach(small_model());
    ASSERT_EQ(world.submit(engine, 1, 8, 4), ErrorCode::kOk);
    world.pass(milliseconds(201));
    ASSERT_EQ(world.submit(engine, 2, 8, 4), ErrorCode::kOk);
    std::vector<std::uint64_t> queue;
    for (const auto& input : world.controller->status(world.now).admission_inputs) {
      for (const RequestKey& key : input.queue) queue.push_back(key.request.value);
    }
    using testing::ElementsAre;
    if (goodput) {
      EXPECT_THAT(queue, ElementsAre(2u, 1u));
    } else {
      EXPECT_THAT(queue, ElementsAre(1u, 2u));
    }
  }
}

// Else "auto" takes the waits for the copies that it orders for time in which more can be copied.
TEST(ControllerRotation, WhatAStepMayMoveDoesNotGrowWhileTheEngineHasNothingToRun) {
  for (const bool pipelined : {false, true}) {
    Controller::Config config = small_pool(2, 32);
    config.tuning.rotation.policy = "lvf";
    World world(config);
    const EngineId engine = world.attach(small_model());
    world.engines.at(engine).pipelined = pipelined;
    ASSERT_EQ(world.submit(engine, 1, 4, 8), ErrorCode::kOk);
    world.step_until_granted(engine);
    ASSERT_TRUE(run_to_end(world));
    const auto mean = [&] {
      return world.controller->status(world.now).devices.front().mean_step_s;
    };
    const double before = mean();
    for (int i = 0; i < 3; ++i) {
      world.pass(seconds(10));
      world.step(engine);
    }
    EXPECT_GT(before, 0) << "pipelined " << pipelined;
    EXPECT_EQ(mean(), before) << "pipelined " << pipelined;
  }
}

// One request fills most of HBM. Another one waits for a first token that is due within 200 ms.
class Unified : public ::testing::Test {
 protected:
  static Controller::Config config() {
    Controller::Config made = small_pool(2, 32);
    made.tuning.slo["default"].ttft = milliseconds(200);
    return made;
  }
  void run(int steps, Nanoseconds each) {
    for (int i = 0; i < steps; ++i) {
      world.pass(each);
      world.run_and_step(engine);
      world.finish_copies();
    }
  }
  void SetUp() override {
    ASSERT_EQ(world.submit(engine, 1, 4, 28), ErrorCode::kOk);
    world.step_until_granted(engine);
  }
  [[nodiscard]] std::uint64_t rotations_out() {
    return world.controller->status(world.now).counters.rotations_out;
  }

  World world{config()};
  EngineId engine = world.attach(small_model());
};

TEST_F(Unified, IsTheDefault) { EXPECT_EQ(world.controller->tuning().rotation.policy, "unified"); }

TEST_F(Unified, TakesOneWhoseDepositCoversItOnceAnotherIsAboutToBeLate) {
  run(11, milliseconds(5));
  ASSERT_EQ(world.submit(engine, 2, 24, 4), ErrorCode::kOk);
  run(4, milliseconds(5));
  EXPECT_EQ(rotations_out(), 0u) << "20 ms waited of 200: nobody leaves for it yet";
  run(1, milliseconds(90));
  run(2, milliseconds(5));
  EXPECT_EQ(rotations_out(), 1u) << "16 tokens in 165 ms, of which two were due";
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST_F(Unified, TakesNobodyWhoHasNothingSavedUp) {
  run(11, milliseconds(100));  // a token every 100 ms, which is when it is due
  ASSERT_EQ(world.submit(engine, 2, 24, 4), ErrorCode::kOk);
  run(10, milliseconds(100));
  EXPECT_EQ(rotations_out(), 0u);
  ASSERT_TRUE(run_to_end(world));
}

// An iteration takes 10 ms, and 5 ms more for each prompt token in it.
class LayerKv : public ::testing::Test {
 protected:
  static Controller::Config config() {
    Controller::Config made = small_pool(32, 64);
    made.tuning.admission.policy = "layerkv";
    made.tuning.slo["default"].tpot = seconds(10);
    return made;
  }
  const StepReply& iterate() {
    Nanoseconds took = milliseconds(10);
    for (const RunEntry& entry : world.engines.at(engine).reply.run) {
      if (entry.prefill) took += milliseconds(5 * entry.tokens.value);
    }
    world.pass(took);
    world.run_and_step(engine);
    return world.engines.at(engine).reply;
  }
  [[nodiscard]] std::int64_t prefill_tokens(const StepReply& reply) const {
    std::int64_t sum = 0;
    for (const RunEntry& entry : reply.run) sum += entry.prefill ? entry.tokens.value : 0;
    return sum;
  }
  void SetUp() override {
    ASSERT_EQ(world.submit(engine, 1, 20, 200), ErrorCode::kOk);
    world.step_until_granted(engine);
    for (int i = 0; i < 20; ++i) iterate();
    // Once more with prefill, now that a step without it is known.
    ASSERT_EQ(world.submit(engine, 2, 20, 200), ErrorCode::kOk);
    for (int i = 0; i < 5; ++i) iterate();
  }

  World world{config()};
  EngineId engine = world.attach(small_model());
};

TEST_F(LayerKv, PrefillComesInChunksThatKeepTheStepWithinItsGoal) {
  ASSERT_EQ(world.submit(engine, 3, 150, 20), ErrorCode::kOk);
  std::int64_t sum = 0;
  int chunks = 0;
  for (int i = 0; i < 40 && sum < 150; ++i) {
    const std::int64_t chunk = prefill_tokens(iterate());
    chunks += chunk > 0 ? 1 : 0;
    sum += chunk;
    EXPECT_LT(chunk, 150) << "deposits allow a few intervals of 100 ms, not all of it at once";
  }
  EXPECT_EQ(sum, 150);
  EXPECT_GT(chunks, 1);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST_F(LayerKv, WithoutThePolicyAPromptComesWhole) {
  Tuning none = world.controller->tuning();
  none.admission.policy = "none";
  world.feed(Retune{none});
  ASSERT_EQ(world.submit(engine, 3, 150, 20), ErrorCode::kOk);
  std::int64_t most = 0;
  for (int i = 0; i < 4; ++i) most = std::max(most, prefill_tokens(iterate()));
  EXPECT_EQ(most, 150);
}

TEST(ControllerPlace, AnswersWithThePlanOfThePolicy) {
  Controller::Config config = small_pool(2, 32);
  World world(config);
  const EngineId engine = world.attach(small_model());
  ASSERT_EQ(world.submit(engine, 1, 20, 8), ErrorCode::kOk);
  ASSERT_EQ(world.submit(engine, 2, 20, 8), ErrorCode::kOk);
  const auto place = [&](std::string_view policy) {
    Tuning tuning = world.controller->tuning();
    tuning.placement.policy = policy;
    tuning.placement.window_min = 1;
    world.feed(Retune{tuning});
    return *world.command(engine, Place{{RequestId(1), RequestId(2)}});
  };
  const auto refused = place("none");
  ASSERT_EQ(world.code(refused), ErrorCode::kInfeasible) << "12 blocks of each group, 16 in all";
  EXPECT_THAT(std::get<Error>(refused.body).message, testing::HasSubstr("without request 1"));
  const auto plan = std::get<PlaceReply>(place("deepspeed").body);
  ASSERT_EQ(plan.entries.size(), 2u);
  EXPECT_EQ(plan.entries[0].distance, 1u);
  EXPECT_EQ(plan.entries[0].resident, Blocks(0));
  EXPECT_EQ(plan.budget, Blocks(16));
  EXPECT_EQ(std::get<PlaceReply>(place("orbitflow").body).entries.size(), 2u);
}

PlanLayers about(std::int64_t capacity, std::vector<PlanLayers::Request> requests) {
  return {Blocks(capacity), Bytes(65536), milliseconds(20), 8, Tokens(16), std::move(requests)};
}

TEST(ControllerLayers, AnEngineThatPlacesItsBlocksHearsOfTheLastPlan) {
  World world(small_pool(2, 32));
  Tuning tuning = world.controller->tuning();
  tuning.placement.policy = "orbitflow";
  world.feed(Retune{tuning});
  const EngineId engine = world.attach({}, DomainId(1), true);
  const auto ask = [&](const PlanLayers& asked) {
    return std::get<PlaceReply>(world.command(engine, asked)->body);
  };
  const std::vector<PlanLayers::Request> both = {{RequestId(3), Tokens(640)},
                                                 {RequestId(5), Tokens(160)}};
  EXPECT_TRUE(ask(about(300, both)).entries.empty()) << "the first plan is being made";
  const PlaceReply plan = ask(about(300, both));
  ASSERT_EQ(plan.entries.size(), 2u);
  EXPECT_EQ(plan.budget, Blocks(300));
  EXPECT_EQ(plan.entries[0].request, RequestId(3));
  Blocks resident;
  for (const auto& entry : plan.entries) resident += entry.resident;
  EXPECT_LT(resident, Blocks(300)) << "50 blocks of 8 layers do not fit";
  EXPECT_GT(resident, Blocks(100)) << "and not more is streamed than has to be";
  const PlaceReply one = ask(about(300, {{RequestId(5), Tokens(160)}}));
  ASSERT_EQ(one.entries.size(), 1u) << "one has ended";
  EXPECT_EQ(one.entries[0].request, RequestId(5));
  EXPECT_EQ(ask(about(300, {{RequestId(5), Tokens(160)}})).entries[0].distance, 0u)
      << "alone it fits";
  EXPECT_TRUE(ask(about(20, both)).entries.size() == 1) << "the plan of before, of those named";
  EXPECT_TRUE(ask(about(20, both)).entries.empty()) << "a batch that does not fit has no plan";
  (void)ask(about(300, both));
  const auto shown = [&] { return world.controller->status(world.now).plans.at(0); };
  EXPECT_EQ(shown().engine, engine);
  EXPECT_EQ(shown().policy, "orbitflow");
  EXPECT_EQ(shown().requests.size(), 2u);
  EXPECT_TRUE(ask(about(300, {})).entries.empty()) << "all have ended";
  EXPECT_TRUE(shown().requests.empty());
  EXPECT_EQ(shown().policy, "");
}

TEST(ControllerLayers, RefusesWhatItCannotAnswer) {
  World world(small_pool(2, 32));
  const EngineId level1 = world.attach({}, DomainId(1), true);
  const EngineId shaped = world.attach(small_model());
  const auto code = [&](EngineId engine, const PlanLayers& asked) {
    return world.code(*world.command(engine, asked));
  };
  EXPECT_EQ(code(shaped, about(300, {{RequestId(3), Tokens(640)}})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(level1, about(300, {{RequestId(3), Tokens(640)}, {RequestId(3), Tokens(1)}})),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(level1, about(300, {})), ErrorCode::kOk);
  world.feed(Detach{level1});
}

}  // namespace
}  // namespace kvd::test
