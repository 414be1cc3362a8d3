#include "planner/policy/pause.hpp"

#include <gtest/gtest.h>

namespace kvd::planner {
namespace {

const ManualClock kNoTime;

PlacementRequest of_blocks(std::int64_t blocks) {
  PlacementRequest request;
  request.blocks = Blocks(blocks);
  return request;
}

// Everything offloaded takes one layer's blocks, so `capacity` is how many blocks may run at once.
ResumeQuestion question(std::int64_t capacity, std::vector<std::int64_t> running,
                        std::vector<std::int64_t> paused) {
  ResumeQuestion made;
  made.running.model = {std::vector<Seconds>(4, Seconds(1)), Seconds(0.1), Seconds(0)};
  made.running.capacity = Blocks(capacity);
  for (const auto blocks : running) made.running.requests.push_back(of_blocks(blocks));
  for (const auto blocks : paused) made.paused.push_back(of_blocks(blocks));
  made.ended_since = true;
  return made;
}

ResumeDecision decide(const ResumeQuestion& of) {
  return *decide_resume(of, **make_placement_policy("orbitflow"), {}, kNoTime);
}

TEST(Resume, OnlyOnceARequestHasEnded) {
  auto of = question(20, {5}, {5});
  EXPECT_EQ(decide(of).resumed, 1u);
  of.ended_since = false;
  EXPECT_EQ(decide(of).resumed, 0u);
  EXPECT_FALSE(decide(of).plan);
}

TEST(Resume, InOrderOfPausingAsLongAsAPlanExists) {
  const auto decision = decide(question(20, {5}, {5, 9, 9, 1}));
  EXPECT_EQ(decision.resumed, 2u) << "5 + 5 + 9 of 20; nobody overtakes the third";
  ASSERT_TRUE(decision.plan);
  EXPECT_TRUE(decision.plan->feasible);
  EXPECT_EQ(decision.plan->placement.size(), 3u);
}

TEST(Resume, AnSloBeyondReachKeepsThemPaused) {
  auto of = question(1000, {5}, {5});
  of.running.requests[0].slo = Seconds(4.5);
  EXPECT_EQ(decide(of).resumed, 1u);
  of.paused[0].slo = Seconds(1);
  PlacementConfig strict;
  strict.alpha = 0;
  EXPECT_EQ(decide_resume(of, **make_placement_policy("orbitflow"), strict, kNoTime)->resumed, 0u);
}

TEST(Resume, WithNobodyRunningTheFirstComesBackAtOnce) {
  auto of = question(4, {}, {5, 1});
  of.ended_since = false;
  EXPECT_EQ(decide(of).resumed, 1u) << "though it does not even fit: alone it can only wait";
}

TEST(EvictPaused, TheLastLayersGoFirstAndTheNeedIsSpread) {
  const std::vector<PausedLayers> paused = {{Blocks(4), {1, 2, 3}}, {Blocks(2), {1, 2, 3, 4}}};
  const auto order = evict_paused(paused, Blocks(9));
  const std::vector<Eviction> expected = {{0, 3}, {1, 4}, {1, 3}, {0, 2}};
  EXPECT_EQ(order, expected) << "4 + 2 + 2, then the first of equals";
}

TEST(EvictPaused, WhereItDoesNotSufficeAllGo) {
  const std::vector<PausedLayers> paused = {{Blocks(4), {2}}, {Blocks(0), {1}}, {Blocks(1), {}}};
  EXPECT_EQ(evict_paused(paused, Blocks(100)), (std::vector<Eviction>{{0, 2}}));
  EXPECT_TRUE(evict_paused(paused, Blocks(0)).empty());
  EXPECT_TRUE(evict_paused({}, Blocks(5)).empty());
}

}  // namespace
}  // namespace kvd::planner
