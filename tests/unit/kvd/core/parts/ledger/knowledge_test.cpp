// What is measured, and how much rotation may move by it.
#include "kvd/core/ledger/knowledge.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::seconds;
using ::testing::DoubleEq;
using ::testing::ElementsAre;

class KnowledgeTest : public PartsTest {
 protected:
  KnowledgeTest() : PartsTest(config()) {}
  static Config config() {
    Config made = small_config(16);
    made.tuning.rotation.b_xfer.reset();
    return made;
  }
  void copied(Tier to, std::int64_t bytes, Nanoseconds busy) {
    CopyFinished finished;
    finished.bytes = Bytes(bytes);
    finished.busy = busy;
    sut.measure_link({kFirst}, to, finished);
  }

  Knowledge& sut = ground.knowledge;
  Budget& budget = ground.budget;
};

TEST_F(KnowledgeTest, ALinkIsAsSlowAsItsSlowerDirection) {
  copied(Tier::kHbm, 3000, seconds(1));
  EXPECT_EQ(sut.slower_link(kFirst), 0) << "the other direction is not measured yet";
  EXPECT_GT(sut.link_or_default(kFirst), 0);
  EXPECT_EQ(sut.fetch_rate(kFirst), 3000);
  copied(Tier::kDram, 1000, seconds(1));
  EXPECT_THAT(sut.link_rates(kFirst), ElementsAre(3000, 1000));
  EXPECT_EQ(sut.slower_link(kFirst), 1000);
}

TEST_F(KnowledgeTest, FollowsAChangedLinkWithinAFewCopies) {
  copied(Tier::kHbm, 1000, seconds(1));
  copied(Tier::kHbm, 2000, seconds(1));
  EXPECT_THAT(sut.link_rates(kFirst)[0], DoubleEq(1250));
  for (int i = 0; i < 20; ++i) copied(Tier::kHbm, 2000, seconds(1));
  EXPECT_NEAR(sut.link_rates(kFirst)[0], 2000, 10);
}

TEST_F(KnowledgeTest, ACopyThatTookNoTimeSaysNothing) {
  copied(Tier::kHbm, 1000, Nanoseconds(0));
  EXPECT_EQ(sut.link_rates(kFirst)[0], 0);
}

TEST_F(KnowledgeTest, AnAnswersLengthIsWhatWasSaidElseWhatEndedElseHalfOfTheMost) {
  Session& session = attach();
  Request& request = submit(session, 4, 100);
  const auto unknown = sut.expected_length(request);
  for (int i = 0; i < 200; ++i) session.costs.lengths.ended(Tokens(10));
  EXPECT_LT(sut.expected_length(request).median, unknown.median);
  EXPECT_NEAR(static_cast<double>(sut.expected_length(request).median.value), 10, 6);
  request.goal.predicted = PredictedLength{Tokens(60), Tokens(60)};
  EXPECT_EQ(sut.expected_length(request).median, Tokens(60));
}

TEST_F(KnowledgeTest, MemoryIsKeptForAnAnswerThatFewAreLongerThan) {
  Session& session = attach();
  Request& request = running(session, 4, 8192);
  EXPECT_EQ(sut.reserved_length(request), Tokens(1024)) << "while nothing is known";
  for (std::int64_t length = 1; length <= 101; ++length) {
    session.costs.lengths.ended(Tokens(length));
  }
  EXPECT_EQ(sut.reserved_length(request), Tokens(91));
  request.times.has_token = true;
  request.progress.tokens = Tokens(4 + 599);
  EXPECT_EQ(sut.reserved_length(request), Tokens(1200)) << "it outgrew all others: half is made";
  request.goal.max_new = Tokens(700);
  EXPECT_EQ(sut.reserved_length(request), Tokens(700)) << "never more than was announced";
  request.progress.tokens = Tokens(4);
  request.goal.predicted = PredictedLength{Tokens(60), Tokens(80)};
  EXPECT_EQ(sut.reserved_length(request), Tokens(80)) << "what was said counts";
}

TEST_F(KnowledgeTest, AnAnswerThatIsAsLongAsItMayBeEndsThere) {
  Session& session = attach();
  Request& request = running(session, 8, 4);
  request.goal.prompt = Tokens(4);
  request.goal.max_new = Tokens(5);
  request.times.has_token = true;
  const auto length = sut.expected_length(request);
  EXPECT_EQ(length.low, Tokens(5));
  EXPECT_EQ(length.median, Tokens(5));
}

TEST_F(KnowledgeTest, AStepsTimeIsALineOverItsPromptTokens) {
  Session& session = attach();
  for (const int tokens : {0, 100, 200, 0, 100, 200, 0, 100}) {
    session.iterations.reported_prefill = Tokens(tokens);
    sut.measure_step(session, 0.010 + 0.0001 * tokens);
  }
  EXPECT_NEAR(session.costs.decode_s, 0.010, 1e-4);
  EXPECT_NEAR(session.costs.prefill_token_s, 0.0001, 1e-6);
}

TEST_F(KnowledgeTest, TheTimeBetweenStepsIsAnIterationsWhereNothingElseWasInIt) {
  Session& session = attach();
  struct Case {
    bool overlapped, stepping, running, iteration;
    const char* what;
  };
  for (const Case& c : {Case{false, false, false, false, "it had nothing to run, and waited"},
                        Case{false, true, false, true, "granted, and run"},
                        Case{false, true, true, false, "pipelined: it begins now"},
                        Case{true, true, true, true, "pipelined: the next begins"},
                        Case{true, false, false, true, "pipelined: it is over, nothing granted"},
                        Case{true, false, true, false, "pipelined: it still runs"}}) {
    session.iterations.overlapped = c.overlapped;
    session.iterations.stepping = c.stepping;
    EXPECT_EQ(Knowledge::was_iteration(session, c.running), c.iteration) << c.what;
  }
}

TEST_F(KnowledgeTest, AMeanStepHasNoWaitsForLayers) {
  Session& session = attach();
  Request& request = running(session, 4);
  session.plan.batch = {request.key};
  session.plan.stall_s = 0.015;
  sut.measure_step(session, 0.020);
  EXPECT_DOUBLE_EQ(sut.mean_step_s(kFirst), 0.020 - 0.015);
}

TEST_F(KnowledgeTest, APlanThatForesawAnotherTimeIsAMismatch) {
  Session& session = attach();
  Request& request = running(session, 4);
  session.plan.batch = {request.key};
  session.plan.step_s = 0.010;
  sut.measure_step(session, 0.010);
  EXPECT_FALSE(session.plan.mismatch);
  sut.measure_step(session, 0.020);
  EXPECT_TRUE(session.plan.mismatch);
}

TEST_F(KnowledgeTest, TheBudgetIsAShareOfHbmUntilTheLinkIsMeasured) {
  EXPECT_EQ(budget.per_step(kFirst), kSlab) << "a sixteenth of 16 slabs";
  copied(Tier::kHbm, 10000, seconds(1));
  copied(Tier::kDram, 10000, seconds(1));
  EXPECT_EQ(budget.per_step(kFirst), kSlab) << "no step was measured yet";
  Session& session = attach();
  sut.measure_step(session, 0.050);
  EXPECT_EQ(budget.per_step(kFirst), Bytes(500)) << "what the link carries in a step";
  sut.measure_step(session, 100);
  EXPECT_EQ(budget.per_step(kFirst), kSlab) << "never more than the share";
}

TEST_F(KnowledgeTest, TheBudgetIsWhatOperatorsSet) {
  ground.context.tuning.rotation.b_xfer = Bytes(77);
  EXPECT_EQ(budget.per_step(kFirst), Bytes(77));
}

TEST_F(KnowledgeTest, TheBucketFillsAtTheLinksRateAndHoldsOneStep) {
  ground.context.tuning.rotation.b_xfer = Bytes(1000);
  budget.refill(kFirst);
  EXPECT_EQ(budget.left(kFirst), Bytes(1000)) << "unmeasured: full at once";
  copied(Tier::kHbm, 100, seconds(1));
  copied(Tier::kDram, 100, seconds(1));
  budget.take(kFirst, Bytes(1500));
  EXPECT_EQ(budget.left(kFirst), Bytes(-500)) << "a whole request moves";
  pass(seconds(2));
  budget.refill(kFirst);
  EXPECT_EQ(budget.left(kFirst), Bytes(-300));
  pass(seconds(5));
  budget.restart();
  budget.refill(kFirst);
  EXPECT_EQ(budget.left(kFirst), Bytes(-300)) << "that time was dropped";
  pass(seconds(100));
  budget.refill(kFirst);
  EXPECT_EQ(budget.left(kFirst), Bytes(1000));
}

class TwoLinksTest : public PartsTest {
 protected:
  TwoLinksTest() : PartsTest(small_config(16, 8, 2)) {}
};

TEST_F(TwoLinksTest, EachHasItsRateAndItsBudget) {
  CopyFinished finished;
  finished.bytes = Bytes(2000);
  finished.busy = seconds(1);
  ground.knowledge.measure_link({kFirst, kSecond}, Tier::kHbm, finished);
  EXPECT_EQ(ground.knowledge.fetch_rate(kFirst), 1000) << "half of the bytes each";
  ground.knowledge.measure_link({kSecond}, Tier::kHbm, finished);
  EXPECT_EQ(ground.knowledge.fetch_rate(kFirst), 1000);
  EXPECT_GT(ground.knowledge.fetch_rate(kSecond), 1000);
  ground.context.tuning.rotation.b_xfer = Bytes(1000);
  ground.budget.refill(kFirst);
  ground.budget.refill(kSecond);
  ground.budget.take(kSecond, Bytes(400));
  EXPECT_EQ(ground.budget.left(kFirst), Bytes(1000));
  EXPECT_EQ(ground.budget.left(kSecond), Bytes(600));
  Session& group = attach(kA, 2, true, Devices(std::vector{kFirst, kSecond}), 2);
  EXPECT_EQ(ground.budget.per_step(group), Bytes(2000));
  ground.knowledge.measure_step(attach(kA, 2, true, Devices(kSecond)), 0.5);
  EXPECT_EQ(ground.knowledge.mean_step_s(kFirst), 0);
  EXPECT_EQ(ground.knowledge.mean_step_s(kSecond), 0.5);
}

}  // namespace
}  // namespace kvd::core
