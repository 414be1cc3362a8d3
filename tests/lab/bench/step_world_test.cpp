#include "tests/lab/bench/step_world.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvd::bench {
namespace {

constexpr std::uint32_t kRunning = 32;
constexpr std::int64_t kPrompt = 256;

std::int64_t in_state(const core::ControllerStatus& status, core::RequestState state) {
  return std::count_if(status.requests.begin(), status.requests.end(),
                       [&](const auto& request) { return request.state == state; });
}

/// Runs as many steps as the world has memory for.
void run(StepWorld& world) {
  for (std::uint32_t i = 0; i < StepWorld::kSteps; ++i) {
    EXPECT_GT(world.step().step_us, 0);
  }
  EXPECT_EQ(world.fault(), "");
}

TEST(StepWorld, HoldsAPlainLoad) {
  StepWorld world(StepKind::kPlain, kRunning, kPrompt);
  const core::Counters before = world.status().counters;
  run(world);
  const core::ControllerStatus after = world.status();
  EXPECT_EQ(in_state(after, core::RequestState::kRunning), kRunning);
  EXPECT_EQ(in_state(after, core::RequestState::kWaiting), StepWorld::kWaiting);
  EXPECT_EQ(after.requests.size(), kRunning + StepWorld::kWaiting);
  EXPECT_EQ(after.counters.tokens - before.tokens, kRunning * StepWorld::kSteps);
  EXPECT_EQ(after.counters.rotations_out, 0U);
  EXPECT_EQ(after.counters.streams, 0U);
}

TEST(StepWorld, StreamsHalfOfTheLayersOfEach) {
  StepWorld world(StepKind::kStream, kRunning, kPrompt);
  const core::Counters before = world.status().counters;
  run(world);
  const core::ControllerStatus after = world.status();
  EXPECT_EQ(after.counters.streams - before.streams, StepWorld::kSteps);
  ASSERT_EQ(after.plans.size(), 1U);
  ASSERT_EQ(after.plans[0].requests.size(), kRunning);
  for (const auto& entry : after.plans[0].requests) {
    EXPECT_EQ(entry.in_dram.size(), StepWorld::kGroups / 2);
  }
  EXPECT_EQ(in_state(after, core::RequestState::kWaiting), StepWorld::kWaiting);
}

TEST(StepWorld, RotatesOneRequestEachWayInEveryStep) {
  StepWorld world(StepKind::kRotate, kRunning, kPrompt);
  const core::Counters before = world.status().counters;
  run(world);
  const core::ControllerStatus after = world.status();
  EXPECT_EQ(after.counters.rotations_out - before.rotations_out, StepWorld::kSteps);
  EXPECT_EQ(after.counters.rotations_in - before.rotations_in, StepWorld::kSteps);
  EXPECT_EQ(in_state(after, core::RequestState::kWaiting), StepWorld::kWaiting);
}

TEST(StepWorld, LeavesThoseThatAreParkedNoRoomToComeBack) {
  StepWorld world(StepKind::kTight, kRunning, kPrompt);
  const core::Counters before = world.status().counters;
  run(world);
  const core::ControllerStatus after = world.status();
  EXPECT_EQ(in_state(after, core::RequestState::kRunning), kRunning);
  EXPECT_EQ(in_state(after, core::RequestState::kRotary), kRunning);
  EXPECT_EQ(in_state(after, core::RequestState::kWaiting), StepWorld::kWaiting);
  EXPECT_EQ(after.counters.rotations_in, before.rotations_in);
}

// This many slabs are mapped one after the other, each because of the answer to the one before.
TEST(StepWorld, FillsALargePool) {
  StepWorld world(StepKind::kRotate, 1024, 1024);
  EXPECT_GT(world.step().step_us, 0);
  EXPECT_GE(in_state(world.status(), core::RequestState::kRunning), 1024);
}

TEST(StepWorld, TellsThatItsLoadIsNotWhatItShouldBe) {
  StepWorld world(StepKind::kPlain, kRunning, kPrompt);
  world.abort_one();
  (void)world.step();
  EXPECT_NE(world.fault(), "");
}

}  // namespace
}  // namespace kvd::bench
