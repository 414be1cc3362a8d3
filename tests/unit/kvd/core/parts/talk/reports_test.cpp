// What an engine says it did: checked before anything changes, then counted.
#include "kvd/core/talk/reports.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using pool::SlotState;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReportsTest : public PartsTest {
 protected:
  explicit ReportsTest(Config config = small_config(8)) : PartsTest(std::move(config)) {}

  /// Grants tokens to each request, as a step reply does.
  void grant(const std::vector<Request*>& granted, std::int64_t tokens = 1) {
    ++session.iterations.granted;
    for (Request* r : granted) {
      ASSERT_EQ(ground.memory.grow(*r, r->progress.planned + Tokens(tokens)), ErrorCode::kOk);
      r->progress.planned += Tokens(tokens);
      r->progress.granted = Tokens(tokens);
      r->progress.last_iteration = session.iterations.granted;
    }
  }
  static StepReport made(const Request& request, std::int64_t tokens, bool finished = false) {
    return {request.key.request, Tokens(tokens), finished};
  }
  static Step said(std::uint64_t finished, std::uint64_t running,
                   std::vector<StepReport> reports = {}) {
    Step step;
    step.iteration_finished = finished;
    step.iteration_running = running;
    step.reports = std::move(reports);
    return step;
  }
  ErrorCode code(const Step& step) {
    const Status status = sut.check(session, step);
    return status.ok() ? ErrorCode::kOk : status.error().code;
  }
  void take(const Step& step) {
    ASSERT_EQ(code(step), ErrorCode::kOk);
    sut.take(session, step);
  }
  /// A prompt of which this many tokens are computed.
  Request& prefilling(std::int64_t prompt, std::int64_t done) {
    Request& request = running(session, done);
    request.phase = Phase::kPrompt;
    request.goal.prompt = Tokens(prompt);
    return request;
  }
  SlotState state(const Request& request, std::uint32_t i) {
    return ground.store.hbm.state(ground.store.blocks.slot(request.table, i, Tier::kHbm));
  }

  DramCopies copies{ground};
  Reports sut{ground, copies};
  Session& session = attach();
};

TEST_F(ReportsTest, IterationsFitTheLastReply) {
  Request& request = running(session, 6);
  EXPECT_EQ(code(said(0, 0)), ErrorCode::kOk) << "the first step of all";
  grant({&request});
  grant({&request});
  EXPECT_EQ(code(said(2, 0)), ErrorCode::kOk) << "it is done";
  EXPECT_EQ(code(said(1, 2)), ErrorCode::kOk) << "it runs still";
  EXPECT_EQ(code(said(1, 0)), ErrorCode::kOk) << "its reply was lost";
  for (const auto& [finished, running] :
       {std::pair{0, 0}, {0, 2}, {2, 2}, {3, 0}, {1, 1}, {2, 3}}) {
    const Step step =
        said(static_cast<std::uint64_t>(finished), static_cast<std::uint64_t>(running));
    EXPECT_EQ(code(step), ErrorCode::kInvalidArgument) << finished << " and " << running;
  }
}

TEST_F(ReportsTest, WhatTheRunningIterationMakesIsNotThereYet) {
  Request& request = running(session, 6);
  grant({&request});
  grant({&request});
  EXPECT_EQ(code(said(1, 2, {made(request, 7)})), ErrorCode::kOk);
  EXPECT_EQ(code(said(1, 2, {made(request, 8)})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(said(2, 0, {made(request, 8)})), ErrorCode::kOk);
  EXPECT_EQ(code(said(2, 0, {made(request, 5)})), ErrorCode::kInvalidArgument) << "it had six";
}

TEST_F(ReportsTest, AFaultNamesTheRequest) {
  Request& request = running(session, 6);
  grant({&request});
  const Status status = sut.check(session, said(1, 0, {made(request, 9)}));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("request 1 reports 9 tokens, between 6 and 7"));
}

TEST_F(ReportsTest, EachIsReportedOnceInWhateverOrder) {
  Request& first = running(session, 6);
  Request& second = running(session, 6);
  grant({&first, &second});
  EXPECT_EQ(code(said(1, 0, {made(second, 7), made(first, 7)})), ErrorCode::kOk);
  EXPECT_EQ(code(said(1, 0, {made(second, 7), made(first, 7), made(second, 7)})),
            ErrorCode::kInvalidArgument);
}

TEST_F(ReportsTest, OneThatAnotherRankEndedIsPassedOver) {
  Request& request = running(session, 6);
  grant({&request});
  const Step step = said(1, 0, {{RequestId(77), Tokens(3), true}, made(request, 7)});
  EXPECT_EQ(code(step), ErrorCode::kNotFound);
  session.ranks.emplace().finished.assign(2, 0);
  EXPECT_EQ(code(step), ErrorCode::kOk);
}

TEST_F(ReportsTest, ACheckChangesNothing) {
  Request& request = running(session, 6);
  grant({&request});
  EXPECT_EQ(code(said(1, 0, {made(request, 7, true)})), ErrorCode::kOk);
  EXPECT_EQ(request.progress.tokens, Tokens(6));
  EXPECT_EQ(session.iterations.finished, 0u);
  EXPECT_EQ(ground.context.counters.tokens, 0u);
}

TEST_F(ReportsTest, TokensAreCountedForRequestEngineAndNode) {
  Request& request = prefilling(12, 4);
  grant({&request}, 8);
  take(said(1, 0, {made(request, 12)}));
  EXPECT_EQ(request.progress.tokens, Tokens(12));
  EXPECT_EQ(session.totals.tokens, 8u);
  EXPECT_EQ(ground.context.counters.tokens, 8u);
  EXPECT_EQ(session.iterations.reported_prefill, Tokens(8));
  EXPECT_EQ(session.iterations.finished, 1u);
}

TEST_F(ReportsTest, ALostGrantIsTakenBack) {
  Request& request = running(session, 6);
  grant({&request});
  take(said(0, 0));
  EXPECT_EQ(request.progress.planned, Tokens(6)) << "it is granted anew";
  EXPECT_EQ(session.iterations.finished, 1u) << "and nothing of it runs";
}

TEST_F(ReportsTest, WhatRunsStaysPlanned) {
  Request& request = running(session, 6);
  grant({&request});
  grant({&request});
  take(said(1, 2, {made(request, 7)}));
  EXPECT_EQ(request.progress.tokens, Tokens(7));
  EXPECT_EQ(request.progress.planned, Tokens(8));
  EXPECT_EQ(session.iterations.finished, 1u);
}

TEST_F(ReportsTest, AnEngineThatMadeLessThanItWasGrantedIsGrantedTheRestAgain) {
  Request& request = prefilling(12, 4);
  grant({&request}, 8);
  take(said(1, 0, {made(request, 8)}));
  EXPECT_EQ(request.progress.planned, Tokens(8));
  EXPECT_TRUE(request.prefills());
}

TEST_F(ReportsTest, TheFirstTokenAndTheNextHaveTheirGoals) {
  Request& request = prefilling(4, 0);
  request.goal.slo.ttft = seconds(2);
  request.goal.slo.tbt = milliseconds(100);
  pass(seconds(2));
  grant({&request}, 4);
  take(said(1, 0, {made(request, 4)}));
  pass(milliseconds(100));
  grant({&request});
  take(said(2, 0, {made(request, 5)}));
  pass(milliseconds(101));
  grant({&request});
  take(said(3, 0, {made(request, 6)}));
  EXPECT_EQ(ground.context.counters.ttft.met, 1u);
  EXPECT_EQ(ground.context.counters.ttft.missed, 0u);
  EXPECT_EQ(ground.context.counters.tbt.met, 1u);
  EXPECT_EQ(ground.context.counters.tbt.missed, 1u);
  EXPECT_EQ(request.times.first_token, TimePoint(seconds(2)));
  EXPECT_EQ(request.times.last_token, ground.context.now);
}

TEST_F(ReportsTest, ATokenAheadOfItsTimeIsSavedUp) {
  Request& request = prefilling(4, 0);
  request.goal.slo.tbt = seconds(1);
  grant({&request}, 4);
  take(said(1, 0, {made(request, 4)}));
  for (std::uint64_t i = 2; i < 5; ++i) {
    grant({&request});
    take(said(i, 0, {made(request, static_cast<std::int64_t>(i) + 3)}));
  }
  EXPECT_EQ(ground.knowledge.saved_up(request), 3) << "none of them is due yet";
  pass(seconds(2));
  EXPECT_EQ(ground.knowledge.saved_up(request), 1);
}

TEST_F(ReportsTest, WithoutAGoalNothingIsSavedUp) {
  Request& request = prefilling(4, 0);
  request.goal.slo.tbt = Nanoseconds(0);
  grant({&request}, 4);
  take(said(1, 0, {made(request, 4)}));
  EXPECT_FALSE(request.times.due);
  EXPECT_TRUE(request.times.has_token);
}

TEST_F(ReportsTest, ABlockIsSealedByTheTokenThatFillsIt) {
  Request& request = running(session, 6);
  grant({&request});
  take(said(1, 0, {made(request, 7)}));
  EXPECT_EQ(state(request, 2), SlotState::kOpen);
  EXPECT_EQ(request.sealed, 1u);
  grant({&request});
  take(said(2, 0, {made(request, 8)}));
  EXPECT_EQ(state(request, 2), SlotState::kSealed);
  EXPECT_EQ(request.sealed, 2u);
}

TEST_F(ReportsTest, OfAGroupNothingIsSealedBeforeItsLastRankIsDone) {
  session.ranks.emplace().finished.assign(2, 0);
  Request& request = running(session, 7);
  grant({&request});
  take(said(1, 0, {made(request, 8)}));
  EXPECT_EQ(request.progress.tokens, Tokens(8));
  EXPECT_EQ(session.iterations.reported, 1u);
  EXPECT_EQ(session.iterations.finished, 0u) << "the first rank says so";
  EXPECT_EQ(request.sealed, 1u) << "another may still write the block";
}

TEST_F(ReportsTest, OneThatCameInIsNoLongerFreshOnceItMadeAToken) {
  Request& idle = running(session, 6);
  Request& request = running(session, 6);
  idle.fresh = request.fresh = true;
  grant({&idle, &request});
  take(said(1, 0, {made(idle, 6), made(request, 7)}));
  EXPECT_TRUE(idle.fresh);
  EXPECT_FALSE(request.fresh);
}

TEST_F(ReportsTest, AnAnswerThatEndedSaysHowLongAnswersGet) {
  for (int i = 0; i < 40; ++i) {
    Request& request = prefilling(4, 0);
    grant({&request}, 4);
    take(said(session.iterations.granted, 0, {made(request, 4, true)}));
  }
  EXPECT_THAT(session.active, IsEmpty());
  EXPECT_EQ(ground.context.counters.requests_finished, 40u);
  Request& next = submit(session, 4, 1000);
  EXPECT_LT(ground.knowledge.expected_length(next).median, Tokens(10)) << "all were of one token";
  EXPECT_EQ(free_hbm(), kSlab * 8);
}

TEST_F(ReportsTest, APromptThatPrefilledIntoDramGoesThere) {
  Request& request = prefilling(8, 4);
  request.layerwise = true;
  grant({&request}, 4);
  take(said(1, 0, {made(request, 8)}));
  EXPECT_TRUE(request.leaving) << "it comes back whole";
}

class CrampedReports : public ReportsTest {
 protected:
  CrampedReports() : ReportsTest(small_config(8, 1)) {}
};

TEST_F(CrampedReports, APromptForWhichDramHasNoRoomStays) {
  Request& request = prefilling(20, 16);
  request.layerwise = true;
  grant({&request}, 4);
  take(said(1, 0, {made(request, 20)}));
  EXPECT_FALSE(request.leaving);
}

}  // namespace
}  // namespace kvd::core
