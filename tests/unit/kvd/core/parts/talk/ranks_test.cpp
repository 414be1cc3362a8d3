// Tensor-parallel groups: what the ranks ask, and what they are told.
#include "kvd/core/talk/ranks.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/all_parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class RanksTest : public AllPartsTest {
 protected:
  RanksTest() {
    session.shape.ranks = 2;
    session.shape.layers = 1;
    session.ranks.emplace().finished.assign(2, 0);
  }
  ~RanksTest() override { ground.store.tiers.iteration_finished(session.id, 1000); }

  std::optional<Reply> step(std::uint32_t rank, std::uint64_t finished,
                            std::vector<StepReport> done = {}) {
    Step body;
    body.iteration_finished = finished;
    body.reports = std::move(done);
    last = command(session, std::move(body), rank);
    ranks.on_step(last, std::get<Step>(last.body));
    return answer_to(last);
  }
  static std::uint64_t iteration_of(const std::optional<Reply>& reply) {
    const StepReply* step = reply ? std::get_if<StepReply>(&reply->body) : nullptr;
    return step ? step->iteration : 0;
  }
  std::string message_of(const std::optional<Reply>& reply) {
    return code_of(reply) == ErrorCode::kOk ? "" : std::get<Error>(reply->body).message;
  }

  Session& session = attach();
  Command last;
};

TEST_F(RanksTest, TheStepIsDecidedOnceForAll) {
  running(session, 6);
  EXPECT_EQ(iteration_of(step(1, 0)), 1u);
  EXPECT_EQ(iteration_of(step(0, 0)), 1u);
  EXPECT_EQ(ground.context.counters.steps, 1u);
}

TEST_F(RanksTest, AnIterationHasEndedOnceAllRanksSaySo) {
  Request& request = running(session, 7);
  const std::vector<StepReport> made{{request.key.request, Tokens(8), false}};
  (void)step(0, 0);
  (void)step(1, 0);
  (void)step(0, 1, made);
  EXPECT_EQ(session.iterations.finished, 0u);
  EXPECT_EQ(request.sealed, 1u) << "rank 1 may still write the second block";
  (void)step(1, 1, made);
  EXPECT_EQ(session.iterations.finished, 1u);
  EXPECT_EQ(request.sealed, 2u);
}

TEST_F(RanksTest, ARankThatIsAheadWaitsForTheOthers) {
  Request& request = running(session, 6);
  (void)step(0, 0);
  EXPECT_FALSE(step(0, 1, {{request.key.request, Tokens(7), false}}));
  const Command ahead = last;
  EXPECT_EQ(code_of(step(0, 1)), ErrorCode::kWouldBlock) << "one at a time";
  EXPECT_EQ(iteration_of(step(1, 0)), 1u);
  EXPECT_EQ(iteration_of(answer_to(ahead)), 2u) << "served with the last rank's answer";
}

TEST_F(RanksTest, WaitingEndsWithTheDeadline) {
  running(session, 6);
  (void)step(0, 0);
  (void)step(0, 1);
  const Command ahead = last;
  ranks.expire_ahead(session);
  EXPECT_FALSE(answer_to(ahead));
  pass(seconds(1));
  ranks.expire_ahead(session);
  EXPECT_EQ(code_of(answer_to(ahead)), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(message_of(answer_to(ahead)), HasSubstr("rank 1"));
  EXPECT_TRUE(session.ranks->ahead.empty());
}

TEST_F(RanksTest, OneThatCameTooLateTakesNoAnswer) {
  running(session, 6);
  (void)step(0, 0);
  (void)step(0, 1);
  const Command ahead = last;
  pass(seconds(2));
  EXPECT_EQ(iteration_of(step(1, 0)), 1u);
  EXPECT_EQ(code_of(answer_to(ahead)), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(ground.context.counters.steps, 1u) << "nothing was decided for it";
}

TEST_F(RanksTest, ALostReplyIsSaidAgain) {
  Request& request = running(session, 6);
  EXPECT_EQ(iteration_of(step(0, 0)), 1u);
  EXPECT_EQ(iteration_of(step(0, 0)), 1u);
  EXPECT_EQ(iteration_of(step(1, 0)), 1u);
  EXPECT_EQ(iteration_of(step(1, 1, {{request.key.request, Tokens(7), false}})), 2u);
  EXPECT_EQ(iteration_of(step(0, 0)), 1u) << "the answer before, which rank 0 did not get";
}

TEST_F(RanksTest, AllRanksStepAlike) {
  Request& request = running(session, 6);
  (void)step(0, 0);
  (void)step(1, 0);
  (void)step(0, 1, {{request.key.request, Tokens(7), false}});
  const auto other = step(1, 7);
  EXPECT_EQ(code_of(other), ErrorCode::kInvalidArgument);
  EXPECT_THAT(message_of(other), HasSubstr("all ranks step alike"));
}

TEST_F(RanksTest, NobodyGivesUpWhatTheOthersMayRun) {
  running(session, 6);
  (void)step(0, 0);
  (void)step(1, 0);
  const auto given_up = step(0, 0);
  EXPECT_EQ(iteration_of(given_up), 1u) << "it repeats the question";
  session.iterations.granted = 2;
  EXPECT_THAT(message_of(step(0, 1)), HasSubstr("gives up an iteration"));
}

TEST_F(RanksTest, ThereAreAsManyAsWereAttached) {
  const auto reply = step(2, 0);
  EXPECT_EQ(code_of(reply), ErrorCode::kInvalidArgument);
  EXPECT_THAT(message_of(reply), HasSubstr("rank 2 of the group does not exist"));
}

TEST_F(RanksTest, AnIdleGroupIsDecidedAboutAgainEachTime) {
  EXPECT_EQ(iteration_of(step(0, 0)), 0u);
  EXPECT_EQ(code_of(step(1, 0)), ErrorCode::kOk);
  running(session, 6);
  EXPECT_EQ(iteration_of(step(0, 0)), 1u) << "an answer with nothing to run is no lost reply";
}

}  // namespace
}  // namespace kvd::core
