// What an engine says it did, and what it shall do next.
#include "kvd/core/talk/replies.hpp"

#include <gmock/gmock.h>

#include "kvd/core/talk/reports.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class RepliesTest : public PartsTest {
 protected:
  RepliesTest() : PartsTest(small_config(8)) {}

  static Hold hold_of(const StepReply& reply, const Request& request) {
    for (const HoldEntry& entry : reply.hold) {
      if (entry.request == request.key.request) return entry.reason;
    }
    return Hold::kNone;
  }
  Status check(const Session& session, const Step& step) { return reports.check(session, step); }
  static Step finished(std::uint64_t iteration, std::vector<StepReport> reports = {}) {
    Step step;
    step.iteration_finished = iteration;
    step.reports = std::move(reports);
    return step;
  }

  DramCopies copies{ground};
  Streams streams{ground};
  Reports reports{ground, copies};
  Replies sut{ground, streams};
};

TEST_F(RepliesTest, GrantsATokenToEachThatDecodes) {
  Session& session = attach();
  Request& request = running(session, 6);
  const StepReply reply = sut.build(session);
  ASSERT_THAT(reply.run, SizeIs(1));
  EXPECT_EQ(reply.run[0].present, Tokens(6));
  EXPECT_EQ(reply.run[0].tokens, Tokens(1));
  EXPECT_FALSE(reply.run[0].prefill);
  EXPECT_EQ(reply.iteration, 1u);
  EXPECT_EQ(request.progress.planned, Tokens(7));
  EXPECT_EQ(request.progress.last_iteration, 1u);
  ground.store.tiers.iteration_finished(session.id, 1);
}

TEST_F(RepliesTest, PublishesTheTableThatTheReplyNames) {
  Session& session = attach();
  Request& request = running(session, 6);
  const StepReply reply = sut.build(session);
  const auto tables = emitted<PublishTable>();
  ASSERT_THAT(tables, SizeIs(1));
  EXPECT_EQ(tables[0].version, reply.table_version);
  ASSERT_THAT(tables[0].rows, SizeIs(1));
  const TableRow& row = tables[0].rows[0];
  ASSERT_EQ(row.slots.size(), 4u);
  for (std::uint32_t group = 0; group < 2; ++group) {
    for (std::uint32_t block = 0; block < 2; ++block) {
      EXPECT_EQ(row.slots[group * 2 + block],
                ground.store.blocks.slot(request.table, block * 2 + group, Tier::kHbm));
    }
  }
}

TEST_F(RepliesTest, ARowIsWorkedOutAgainWhenASlotInHbmChanges) {
  Session& session = attach();
  Request& request = running(session, 6);
  const auto row = [&] {
    (void)sut.build(session);
    ground.store.tiers.iteration_finished(session.id, session.iterations.granted);
    request.progress.planned = request.progress.tokens;
    return emitted<PublishTable>().back().rows[0].slots;
  };
  const auto first = row();
  EXPECT_EQ(row().data(), first.data());
  const pool::SlotGrant copy = ground.store.tiers.try_take(Tier::kDram, session.taker(), 1);
  ground.store.blocks.place(request.table, 0, Tier::kDram, copy.slots[0]);
  EXPECT_EQ(row().data(), first.data()) << "what is in DRAM is none of its slots";
  ASSERT_EQ(ground.memory.grow(request, Tokens(9)), ErrorCode::kOk);
  EXPECT_EQ(row().size(), 6u);
}

TEST_F(RepliesTest, AReplyWithNothingToRunIsNoIteration) {
  Session& session = attach();
  Request& request = submit(session, 4, 4);
  const StepReply reply = sut.build(session);
  EXPECT_THAT(reply.run, IsEmpty());
  EXPECT_EQ(reply.iteration, 0u);
  EXPECT_EQ(hold_of(reply, request), Hold::kWaiting);
  EXPECT_FALSE(session.iterations.stepping);
  EXPECT_THAT(emitted<PublishTable>(), IsEmpty());
}

TEST_F(RepliesTest, SaysWhyARequestDoesNotRun) {
  Session& session = attach();
  Request& forced = running(session, 4);
  Request& paused = running(session, 4);
  Request& leaves = running(session, 4);
  Request& claims = submit(session, 4, 4);
  Request& full = running(session, 4);
  forced.verdict = Verdict::kForcedOut;
  paused.verdict = Verdict::kPaused;
  leaves.leaving = true;
  ground.requests.make_claim(claims);
  ASSERT_EQ(full.table.blocks(), 1u);
  const StepReply reply = sut.build(session);
  EXPECT_EQ(hold_of(reply, forced), Hold::kForced);
  EXPECT_EQ(hold_of(reply, paused), Hold::kPaused);
  EXPECT_EQ(hold_of(reply, leaves), Hold::kSwappedOut);
  EXPECT_EQ(hold_of(reply, claims), Hold::kNoMemory);
  EXPECT_EQ(hold_of(reply, full), Hold::kNoMemory) << "it has no block for its next token";
  EXPECT_TRUE(full.starved);
}

TEST_F(RepliesTest, APromptGetsAsManyTokensAsAreAllowed) {
  Session& session = attach();
  Request& first = submit(session, 8, 4);
  Request& second = submit(session, 8, 4);
  for (Request* request : {&first, &second}) {
    ASSERT_EQ(ground.memory.grow(*request, Tokens(9)), ErrorCode::kOk);
    request->place = Location::kIn;
    ground.requests.requeue(*request);
  }
  session.iterations.chunk = Tokens(10);
  const StepReply reply = sut.build(session);
  ASSERT_THAT(reply.run, SizeIs(2));
  EXPECT_TRUE(reply.run[0].prefill);
  EXPECT_EQ(reply.run[0].tokens, Tokens(8));
  EXPECT_EQ(reply.run[1].tokens, Tokens(2));
  EXPECT_EQ(session.iterations.granted_prefill, Tokens(10));
}

TEST_F(RepliesTest, TheChunkGoesFirstToThePromptThatIsDueFirst) {
  Session& session = attach();
  Request& patient = submit(session, 8, 4);
  Request& urgent = submit(session, 8, 4);
  patient.goal.slo.ttft = std::chrono::minutes(10);
  for (Request* request : {&patient, &urgent}) {
    ASSERT_EQ(ground.memory.grow(*request, Tokens(9)), ErrorCode::kOk);
    request->place = Location::kIn;
    ground.requests.requeue(*request);
  }
  session.iterations.chunk = Tokens(10);
  const StepReply reply = sut.build(session);
  ASSERT_THAT(reply.run, SizeIs(2));
  EXPECT_EQ(reply.run[0].request, urgent.key.request);
  EXPECT_EQ(reply.run[0].tokens, Tokens(8));
  EXPECT_EQ(reply.run[1].tokens, Tokens(2));
}

TEST_F(RepliesTest, TellsOnceWhoWasGivenUp) {
  Session& session = attach();
  session.given_up = {{RequestId(7), Hold::kOutOfMemory}};
  EXPECT_THAT(sut.build(session).hold, SizeIs(1));
  EXPECT_THAT(sut.build(session).hold, IsEmpty());
}

TEST_F(RepliesTest, AReportCountsTokensAndTheGoalThatItMet) {
  Session& session = attach();
  Request& request = running(session, 7);
  (void)sut.build(session);
  request.goal.prompt = Tokens(8);
  request.phase = Phase::kPrompt;
  request.goal.slo.ttft = std::chrono::seconds(1);
  pass(std::chrono::seconds(2));
  const Step step = finished(1, {{request.key.request, Tokens(8), false}});
  ASSERT_TRUE(check(session, step).ok());
  reports.take(session, step);
  EXPECT_EQ(request.progress.tokens, Tokens(8));
  EXPECT_TRUE(request.decodes()) << "its first token was made";
  EXPECT_EQ(request.times.first_token, TimePoint(std::chrono::seconds(2)));
  EXPECT_EQ(ground.context.counters.ttft.missed, 1u);
  EXPECT_EQ(request.sealed, 2u);
  EXPECT_EQ(session.iterations.reported_prefill, Tokens(1));
}

TEST_F(RepliesTest, OneThatIsDoneIsForgotten) {
  Session& session = attach();
  Request& request = running(session, 6);
  (void)sut.build(session);
  reports.take(session, finished(1, {{request.key.request, Tokens(7), true}}));
  EXPECT_THAT(session.active, IsEmpty());
  EXPECT_EQ(ground.context.counters.requests_finished, 1u);
  EXPECT_EQ(free_hbm(), kSlab * 8);
}

TEST_F(RepliesTest, RefusesWhatCannotBe) {
  Session& session = attach();
  Request& request = running(session, 6);
  (void)sut.build(session);
  const RequestId id = request.key.request;
  EXPECT_EQ(check(session, finished(2)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(check(session, finished(1, {{RequestId(99), Tokens(1), false}})).error().code,
            ErrorCode::kNotFound);
  for (const std::int64_t tokens : {5, 8}) {
    EXPECT_EQ(check(session, finished(1, {{id, Tokens(tokens), false}})).error().code,
              ErrorCode::kInvalidArgument)
        << tokens << " tokens, 6 or 7 are possible";
  }
  const StepReport once{id, Tokens(7), false};
  EXPECT_EQ(check(session, finished(1, {once, once})).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(check(session, finished(1, {once})).ok());
  EXPECT_TRUE(check(session, finished(0)).ok()) << "the grant was lost on its way";
}

TEST_F(RepliesTest, AnEngineWithoutAModelCannotStep) {
  Session& session = attach();
  session.class_id = ClassId();
  EXPECT_EQ(check(session, finished(0)).error().code, ErrorCode::kInvalidArgument);
  session.class_id = kClass;
}

}  // namespace
}  // namespace kvd::core
