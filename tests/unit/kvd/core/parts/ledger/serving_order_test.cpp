// Tests who of those in line is served first: by when first tokens are due, and engines in turn.
#include "kvd/core/ledger/serving_order.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;

class ServingOrderTest : public PartsTest {
 protected:
  Request& waits(Session& session, Nanoseconds ttft = seconds(5)) {
    Request& request = submit(session, 8, 8);
    request.goal.slo.ttft = ttft;
    return request;
  }
  std::vector<Request*> order(DomainId domain = kA) {
    const auto line = sut.in_line(domain);
    return {line.begin(), line.end()};
  }
  void use(const char* policy, const char* overload = "goodput") {
    Tuning wanted = ground.context.tuning;
    wanted.rotation.policy = policy;
    wanted.rotation.overload = overload;
    ground.context.retune(wanted);
  }

  ServingOrder& sut = ground.line;
};

TEST_F(ServingOrderTest, GoesByWhenFirstTokensAreDueWhateverTheEngine) {
  Session& batch = attach();
  Session& chat = attach();
  Request& patient = waits(batch, minutes(10));
  pass(seconds(1));
  Request& urgent = waits(chat);
  EXPECT_THAT(order(), ElementsAre(&urgent, &patient));
  EXPECT_EQ(urgent.order.place, 0u);
  EXPECT_EQ(patient.order.place, 1u);
}

TEST_F(ServingOrderTest, OtherPoliciesServeByArrival) {
  Session& batch = attach();
  Request& patient = waits(batch, minutes(10));
  pass(seconds(1));
  Request& urgent = waits(batch);
  use("fcfs");
  EXPECT_THAT(order(), ElementsAre(&patient, &urgent));
}

TEST_F(ServingOrderTest, OneThatIsLateGoesBehindItsClassAndBeforeThoseThatHaveTime) {
  Session& session = attach();
  Request& patient = waits(session, minutes(10));
  Request& late = waits(session);
  pass(seconds(6));
  Request& fresh = waits(session);
  EXPECT_THAT(order(), ElementsAre(&fresh, &late, &patient));
  pass(seconds(155));
  Request& last = waits(session);
  EXPECT_THAT(order(), ElementsAre(&late, &last, &fresh, &patient)) << "161 s of 160 have passed";
  use("unified", "ttft");
  EXPECT_THAT(order(), ElementsAre(&late, &fresh, &last, &patient));
}

TEST_F(ServingOrderTest, AGoalThatNobodyCouldMeetIsNoWayToTheHeadOfTheLine) {
  Session& session = attach();
  Request& greedy = waits(session, Nanoseconds(1));
  Request& plain = waits(session);
  pass(seconds(1));
  EXPECT_THAT(order(), ElementsAre(&plain, &greedy));
  pass(seconds(5));
  EXPECT_THAT(order(), ElementsAre(&greedy, &plain)) << "both are late by now";
}

TEST_F(ServingOrderTest, EnginesOfThoseThatAreLateTakeTurns) {
  Session& first = attach();
  Session& second = attach();
  Request& a = waits(first);
  Request& b = waits(first);
  Request& c = waits(second);
  EXPECT_THAT(order(), ElementsAre(&a, &b, &c)) << "all can be in time";
  pass(seconds(6));
  EXPECT_THAT(order(), ElementsAre(&a, &c, &b));
  first.totals.served = Tokens(1);
  EXPECT_THAT(order(), ElementsAre(&c, &a, &b)) << "its engine made fewer tokens";
  first.totals.served = Tokens(1 << 20);
  Request& d = waits(second);
  pass(seconds(6));
  EXPECT_THAT(order(), ElementsAre(&c, &d, &a, &b));
}

TEST_F(ServingOrderTest, AnIdleEngineSavesUpNoTurns) {
  Session& busy = attach();
  Session& idle = attach();
  waits(busy);
  busy.totals.served = Tokens(1000);
  waits(idle);
  EXPECT_EQ(idle.totals.served, Tokens(1000));
}

TEST_F(ServingOrderTest, TurnsLeaveOtherGoalsWhereTheyAre) {
  Session& first = attach();
  Session& second = attach();
  Request& a = waits(first);
  Request& b = waits(first);
  Request& c = waits(second);
  Request& patient = waits(first, minutes(10));
  Request& tight = waits(first, seconds(1));
  pass(seconds(6));
  EXPECT_THAT(order(), ElementsAre(&tight, &a, &c, &b, &patient));
}

}  // namespace
}  // namespace kvd::core
