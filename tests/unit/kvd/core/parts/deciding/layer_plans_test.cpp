// When a plan is asked for, what the one that came changes, and who pauses.
#include "kvd/core/deciding/layer_plans.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint32_t kLayerGroups = 4;

class LayerPlansTest : public PartsTest {
 protected:
  LayerPlansTest() : PartsTest(config()) {}
  static Config config() {
    Config made = small_config(8, 16);
    made.tuning.placement.policy = "orbitflow";
    made.tuning.placement.pause = true;
    return made;
  }

  Session& streaming() {
    Session& session = attach(kA, kLayerGroups);
    session.streaming = true;
    return session;
  }
  /// The solver's answer to the last question.
  void answer(const Session& session, planner::PlacementDecision decision) {
    sut.on_plan({.engine = session.id,
                 .number = session.plan.number,
                 .query = false,
                 .decision = std::move(decision)});
  }
  static planner::PlacementDecision placing(std::vector<std::vector<std::int32_t>> offloaded) {
    planner::PlacementDecision decision;
    decision.feasible = true;
    decision.expires_in = 8;
    for (auto& layers : offloaded) {
      planner::Candidate side;
      side.offloaded = std::move(layers);
      decision.placement.push_back(std::move(side));
    }
    return decision;
  }
  static planner::PlacementDecision impossible(std::size_t victim) {
    planner::PlacementDecision decision;
    decision.feasible = false;
    decision.reason = planner::InfeasibleReason::kSlo;
    decision.victim = victim;
    return decision;
  }

  LayerPlans sut{ground};
};

TEST_F(LayerPlansTest, AsksOnceForTheBatchThatRuns) {
  Session& session = streaming();
  Request& request = running(session, 8);
  sut.renew(session);
  ASSERT_THAT(emitted<SolvePlacement>(), SizeIs(1));
  EXPECT_EQ(emitted<SolvePlacement>()[0].number, 1u);
  EXPECT_THAT(session.plan.asked_for, ElementsAre(request.key));
  sut.renew(session);
  EXPECT_THAT(emitted<SolvePlacement>(), SizeIs(1)) << "its answer is awaited";
}

TEST_F(LayerPlansTest, AnEngineWhoseLayersDoNotStreamNeedsNoPlan) {
  Session& session = attach(kA, kLayerGroups);
  running(session, 8);
  sut.renew(session);
  EXPECT_THAT(emitted<SolvePlacement>(), IsEmpty());
}

TEST_F(LayerPlansTest, ThePlanThatCameSaysWhichLayersAreAway) {
  Session& session = streaming();
  Request& request = running(session, 8);
  sut.renew(session);
  answer(session, placing({{2, 4}}));
  EXPECT_THAT(request.layers.away, ElementsAre(false, true, false, true));
  EXPECT_THAT(session.plan.batch, ElementsAre(request.key));
  EXPECT_EQ(session.plan.steps_left, 8);
}

TEST_F(LayerPlansTest, IsMadeAgainWhenItExpiresOrTheBatchChanges) {
  Session& session = streaming();
  running(session, 8);
  sut.renew(session);
  answer(session, placing({{}}));
  for (int step = 0; step < 7; ++step) sut.renew(session);
  EXPECT_THAT(emitted<SolvePlacement>(), SizeIs(1));
  sut.renew(session);
  EXPECT_THAT(emitted<SolvePlacement>(), SizeIs(1)) << "eight steps are over, but no time";
  pass(std::chrono::milliseconds(1));
  sut.renew(session);
  EXPECT_THAT(emitted<SolvePlacement>(), SizeIs(2)) << "eight steps are over";
  answer(session, placing({{}}));
  running(session, 8);
  sut.renew(session);
  EXPECT_THAT(emitted<SolvePlacement>(), SizeIs(3)) << "another batch";
}

TEST_F(LayerPlansTest, OneForAnotherBatchIsDiscarded) {
  Session& session = streaming();
  Request& request = running(session, 8);
  sut.renew(session);
  running(session, 8);
  answer(session, placing({{2, 4}}));
  EXPECT_THAT(request.layers.away, IsEmpty());
  EXPECT_THAT(emitted<SolvePlacement>(), SizeIs(2)) << "asked again at once";
}

TEST_F(LayerPlansTest, AnOldAnswerIsNoAnswer) {
  Session& session = streaming();
  Request& request = running(session, 8);
  sut.renew(session);
  sut.on_plan({.engine = session.id, .number = 0, .query = false, .decision = placing({{2}})});
  EXPECT_TRUE(session.plan.asked);
  EXPECT_THAT(request.layers.away, IsEmpty());
}

TEST_F(LayerPlansTest, WhereNoPlanMeetsTheGoalsTheVictimPauses) {
  Session& session = streaming();
  Request& first = running(session, 8);
  Request& second = running(session, 8);
  sut.renew(session);
  answer(session, impossible(1));
  EXPECT_TRUE(second.paused());
  EXPECT_FALSE(first.paused());
  EXPECT_EQ(ground.context.counters.pauses, 1u);
  EXPECT_THAT(session.plan.asked_for, ElementsAre(first.key)) << "asked for the rest at once";
}

TEST_F(LayerPlansTest, ThePausedOneResumesAfterAnotherHasEnded) {
  Session& session = streaming();
  Request& first = running(session, 8);
  Request& second = running(session, 8);
  sut.renew(session);
  answer(session, impossible(1));
  answer(session, placing({{}}));
  ASSERT_TRUE(second.paused());
  ground.memory.end(first);
  sut.renew(session);
  EXPECT_THAT(session.plan.asked_for, ElementsAre(second.key));
  answer(session, placing({{}}));
  EXPECT_FALSE(second.paused());
}

TEST_F(LayerPlansTest, OneThatACommandKeepsOutIsNotPaused) {
  Session& session = streaming();
  running(session, 8);
  Request& second = running(session, 8);
  sut.renew(session);
  second.verdict = Verdict::kForcedOut;
  answer(session, impossible(1));
  EXPECT_TRUE(second.forced_out());
}

TEST_F(LayerPlansTest, OneThatEndsIsPlannedForNoMore) {
  Session& session = streaming();
  Request& stays = running(session, 8);
  running(session, 8).verdict = Verdict::kHopeless;
  sut.renew(session);
  EXPECT_THAT(session.plan.asked_for, ElementsAre(stays.key));
}

TEST_F(LayerPlansTest, WithoutStreamingNobodyIsPausedAndNothingIsAway) {
  Session& session = streaming();
  Request& first = running(session, 8);
  Request& second = running(session, 8);
  sut.renew(session);
  answer(session, impossible(1));
  answer(session, placing({{2}}));
  ASSERT_FALSE(first.layers.away.empty());
  sut.forget(session);
  EXPECT_FALSE(second.paused());
  EXPECT_THAT(first.layers.away, IsEmpty());
  EXPECT_THAT(session.plan.batch, IsEmpty());
}

TEST_F(LayerPlansTest, WhatThePolicyIsAskedCountsWhatTheBatchHolds) {
  Session& session = streaming();
  Request& request = running(session, 8);
  const PlacementInput input = sut.placement_input(session, {request.key});
  ASSERT_THAT(input.snapshot.requests, SizeIs(1));
  EXPECT_EQ(input.snapshot.requests[0].blocks, Blocks(3)) << "two, and one for its next token";
  EXPECT_EQ(input.snapshot.capacity, Blocks(64)) << "free slots and its own";
}

}  // namespace
}  // namespace kvd::core
