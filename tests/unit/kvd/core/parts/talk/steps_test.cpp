// One step of an engine: the order of what comes in and what goes out.
#include "kvd/core/talk/steps.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/all_parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StepsTest : public AllPartsTest {
 protected:
  explicit StepsTest(Config config = small_config()) : AllPartsTest(std::move(config)) {}
  ~StepsTest() override {
    for (auto& [id, session] : ground.requests.sessions()) {
      ground.store.tiers.iteration_finished(id, 1000);
    }
  }

  StepReply next(Session& session, std::vector<StepReport> done = {}) {
    Step step;
    step.iteration_finished = session.iterations.granted;
    step.reports = std::move(done);
    Result<StepReply> reply = steps.next(session, step);
    EXPECT_TRUE(reply.ok());
    return reply.ok() ? *reply : StepReply{};
  }
  static std::vector<RequestId> run_of(const StepReply& reply) {
    std::vector<RequestId> ids;
    for (const RunEntry& entry : reply.run) ids.push_back(entry.request);
    return ids;
  }
  static StepReport made(const Request& request, std::int64_t tokens, bool finished = false) {
    return {request.key.request, Tokens(tokens), finished};
  }
};

TEST_F(StepsTest, APromptThatFitsRunsInTheStepThatFindsIt) {
  Session& session = attach();
  Request& request = submit(session, 8, 8);
  const StepReply reply = next(session);
  ASSERT_THAT(run_of(reply), ElementsAre(request.key.request));
  EXPECT_TRUE(reply.run[0].prefill);
  EXPECT_EQ(reply.run[0].tokens, Tokens(8));
  EXPECT_EQ(session.totals.steps, 1u);
  EXPECT_EQ(ground.context.counters.steps, 1u);
}

TEST_F(StepsTest, APromptBecomesAnAnswerTokenByToken) {
  ground.context.tuning.rotation.eager = false;
  Session& session = attach();
  Request& request = submit(session, 4, 3);
  next(session);
  for (std::int64_t tokens = 4; tokens < 6; ++tokens) {
    const StepReply reply = next(session, {made(request, tokens)});
    ASSERT_THAT(reply.run, SizeIs(1));
    EXPECT_EQ(reply.run[0].present, Tokens(tokens));
    EXPECT_EQ(reply.run[0].tokens, Tokens(1));
    EXPECT_FALSE(reply.run[0].prefill);
  }
  EXPECT_THAT(next(session, {made(request, 6, true)}).run, IsEmpty());
  EXPECT_THAT(session.active, IsEmpty());
  EXPECT_EQ(free_hbm(), kSlab * 4);
}

TEST_F(StepsTest, AStepThatCannotBeChangesNothing) {
  Session& session = attach();
  Request& request = submit(session, 8, 8);
  session.life.responsive = false;
  pass(seconds(1));
  Step wrong;
  wrong.iteration_finished = 7;
  EXPECT_FALSE(steps.next(session, wrong).ok());
  EXPECT_TRUE(request.waits());
  EXPECT_EQ(session.totals.steps, 0u);
  EXPECT_EQ(session.life.last_step, TimePoint(0));
  EXPECT_FALSE(session.life.responsive);
}

TEST_F(StepsTest, AnEngineThatStepsIsThere) {
  Session& session = attach();
  session.life.responsive = false;
  pass(seconds(9));
  next(session);
  EXPECT_TRUE(session.life.responsive);
  EXPECT_EQ(session.life.last_step, ground.context.now);
}

TEST_F(StepsTest, TheTimeFromStepToStepIsMeasured) {
  Session& session = attach();
  running(session, 6);
  pass(milliseconds(10));
  next(session);
  EXPECT_EQ(ground.knowledge.mean_step_s(kFirst), 0) << "there was no step before";
  pass(milliseconds(40));
  next(session);
  EXPECT_DOUBLE_EQ(ground.knowledge.mean_step_s(kFirst), 0.04);
  EXPECT_DOUBLE_EQ(session.costs.decode_s, 0.04);
}

TEST_F(StepsTest, AnIdleStepSaysNothingOfWhatStepsTake) {
  Session& session = attach();
  pass(milliseconds(10));
  next(session);
  pass(seconds(40));
  next(session);
  EXPECT_EQ(session.costs.decode_s, 0) << "nothing ran";
}

TEST_F(StepsTest, WhatOneFreesTheNextGetsInTheSameStep) {
  ground.context.tuning.rotation.eager = false;
  Session& session = attach();
  Request& first = running(session, 60, 4);
  Request& second = submit(session, 32, 8);
  EXPECT_THAT(run_of(next(session)), ElementsAre(first.key.request));
  EXPECT_TRUE(second.waits());
  EXPECT_THAT(run_of(next(session, {made(first, 61, true)})), ElementsAre(second.key.request));
}

TEST_F(StepsTest, APromiseIsKeptAtTheVictimsNextStep) {
  Session& session = attach();
  Request& victim = running(session, 8);
  Request& hungry = running(attach(), 8);
  hungry.starved = true;  // another request waits for exactly its slots
  victim.promised = Promise::kForSlots;
  const StepReply reply = next(session);
  EXPECT_EQ(victim.place, Location::kGoing);
  EXPECT_THAT(reply.run, IsEmpty());
  ASSERT_THAT(reply.hold, SizeIs(1));
  EXPECT_EQ(reply.hold[0].reason, Hold::kSwappedOut);
}

TEST_F(StepsTest, APromiseThatNobodyNeedsEndsBeforeItIsKept) {
  Session& session = attach();
  Request& victim = running(session, 8);
  victim.promised = Promise::kForBytes;
  EXPECT_THAT(run_of(next(session)), ElementsAre(victim.key.request));
  EXPECT_FALSE(victim.promised);
  EXPECT_EQ(ground.context.counters.promises_expired, 1u);
}

TEST_F(StepsTest, WhoEndsForWantOfMemoryIsToldSoOnce) {
  Session& session = attach();
  Request& request = running(session, 8);
  const RequestId id = request.key.request;
  request.verdict = Verdict::kHopeless;
  const StepReply reply = next(session);
  ASSERT_THAT(reply.hold, SizeIs(1));
  EXPECT_EQ(reply.hold[0].request, id);
  EXPECT_EQ(reply.hold[0].reason, Hold::kOutOfMemory);
  EXPECT_THAT(next(session).hold, IsEmpty());
  EXPECT_EQ(free_hbm(), kSlab * 4);
}

TEST_F(StepsTest, AReportOfOneThatIsAboutToEndIsTakenFirst) {
  Session& session = attach();
  Request& request = running(session, 7);
  next(session);
  request.verdict = Verdict::kHopeless;
  next(session, {made(request, 8)});
  EXPECT_EQ(session.totals.tokens, 1u) << "its last token counts";
}

TEST_F(StepsTest, WhatIsFullIsCopiedAheadBehindTheTable) {
  Session& session = attach();
  Request& request = running(session, 8);
  next(session);
  const auto copies_ahead = emitted<CopySlots>();
  ASSERT_THAT(copies_ahead, SizeIs(1));
  EXPECT_TRUE(copies_ahead[0].background);
  EXPECT_EQ(request.moves.sync, copies_ahead[0].ticket);
}

TEST_F(StepsTest, WhoLeavesAtTheStepIsNotCopiedAhead) {
  Session& session = attach();
  Request& request = running(session, 8);
  request.leaving = true;
  next(session);
  const auto moves = emitted<CopySlots>();
  ASSERT_THAT(moves, SizeIs(1));
  EXPECT_FALSE(moves[0].background);
  EXPECT_EQ(request.moves.rotation, moves[0].ticket);
}

TEST_F(StepsTest, WithoutStreamingPausesEnd) {
  Session& session = attach(kA, 4);
  Request& request = running(session, 8);
  session.streaming = true;
  session.plan.number = 3;
  request.verdict = Verdict::kPaused;
  EXPECT_THAT(run_of(next(session)), ElementsAre(request.key.request));
  EXPECT_FALSE(session.streaming) << "this policy streams nothing";
  EXPECT_FALSE(request.paused());
}

class StreamingSteps : public StepsTest {
 protected:
  StreamingSteps() : StepsTest(config()) {}
  static Config config() {
    Config made = small_config(8, 16);
    made.tuning.placement.policy = "orbitflow";
    return made;
  }
};

TEST_F(StreamingSteps, APlanIsAskedForTheBatchThatResults) {
  Session& session = attach(kA, 4);
  Request& runs = running(session, 32);
  Request& comes = submit(session, 32, 8);
  next(session);
  EXPECT_TRUE(session.streaming);
  EXPECT_THAT(session.plan.asked_for, ElementsAre(runs.key, comes.key));
  EXPECT_THAT(emitted<SolvePlacement>(), SizeIs(1));
}

TEST_F(StreamingSteps, LayersThatLeftAreFetchedForTheIteration) {
  Session& session = attach(kA, 4);
  Request& request = running(session, 8);
  next(session);
  ASSERT_TRUE(swaps.on_copy({request.moves.sync, true, kSlot, Nanoseconds(1000)}));
  while (request.moves.sync) {
    ASSERT_TRUE(swaps.on_copy({request.moves.sync, true, kSlot, Nanoseconds(1000)}));
  }
  request.layers.away = {false, true, false, true};
  session.plan.asked = true;  // its answer is awaited
  const StepReply reply = next(session, {made(request, 9)});
  ASSERT_THAT(reply.run, SizeIs(1));
  EXPECT_TRUE(reply.run[0].streamed);
  const auto streams_ordered = emitted<StreamLayers>();
  ASSERT_THAT(streams_ordered, SizeIs(1));
  EXPECT_EQ(streams_ordered[0].iteration, reply.iteration);
  EXPECT_EQ(streams_ordered[0].fetches.size(), 2u);
}

}  // namespace
}  // namespace kvd::core
