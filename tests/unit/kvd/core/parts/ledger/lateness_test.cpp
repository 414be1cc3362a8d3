// Goals are missed when they pass; what was waited for is counted by class.
#include "kvd/core/ledger/lateness.hpp"

#include <gtest/gtest.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LatenessTest : public PartsTest {
 protected:
  Request& waits(Nanoseconds ttft = seconds(1), Nanoseconds tbt = milliseconds(100)) {
    Request request;
    request.key = {session.id, RequestId(++last)};
    request.goal.prompt = Tokens(4);
    request.goal.max_new = Tokens(4);
    request.goal.slo = {ttft, tbt, tbt};
    request.table = store::BlockTable(session.groups());
    request.times.arrived = ground.context.now;
    return ground.requests.add(std::move(request));
  }
  void made(Request& request, std::int64_t tokens) {
    request.progress.tokens = Tokens(tokens);
    sut.made(request);
  }
  Intervals& ttft() { return session.totals.services[0].ttft; }
  Intervals& tbt() { return session.totals.services[0].tbt; }

  Session& session = attach();
  Lateness& sut = ground.lateness;
  std::uint64_t last = 0;
};

TEST_F(LatenessTest, CountsForTheNodeAndForTheClass) {
  Request& request = waits();
  made(request, 4);
  pass(milliseconds(101));
  sut.watch();
  EXPECT_EQ(ttft().met, 1u);
  EXPECT_EQ(tbt().missed, 1u);
  EXPECT_EQ(ground.context.counters.ttft.met, 1u);
  EXPECT_EQ(ground.context.counters.tbt.missed, 1u);
}

TEST_F(LatenessTest, ATokenPutsItsGoalOff) {
  Request& request = waits(seconds(1), milliseconds(100));
  made(request, 4);
  for (int i = 0; i < 3; ++i) {
    pass(milliseconds(100));
    sut.watch();
    made(request, 5 + i);
  }
  EXPECT_EQ(tbt().met, 3u);
  EXPECT_EQ(tbt().missed, 0u);
  pass(seconds(1));
  sut.watch();
  EXPECT_EQ(tbt().missed, 0u) << "all its tokens are made";
}

TEST_F(LatenessTest, ATickLooksAtSoManyAndTheNextGoesOn) {
  for (int i = 0; i < 3000; ++i) waits();
  pass(seconds(2));
  sut.watch();
  EXPECT_EQ(ttft().missed, 2048u);
  sut.watch();
  EXPECT_EQ(ttft().missed, 3000u);
}

TEST_F(LatenessTest, AGoalBeyondAllTimeIsNone) {
  waits(Nanoseconds::max());
  pass(seconds(3600));
  sut.watch();
  EXPECT_EQ(ttft().missed, 0u);
}

TEST_F(LatenessTest, AWaitEndsWithTheFirstIterationOrWithout) {
  Request& enters = waits();
  Request& leaves = waits();
  pass(milliseconds(300));
  sut.entered(enters);
  enters.progress.last_iteration = 1;
  pass(milliseconds(300));
  ground.memory.end(leaves);
  ground.memory.end(enters);
  EXPECT_DOUBLE_EQ(session.totals.services[0].wait_s.sum, 0.9);
  EXPECT_EQ(ttft().missed, 0u) << "neither was late yet";
}

TEST(ClassServices, ClassesBeyondThePlacesShareTheLast) {
  ClassServices sut("default");
  for (int i = 0; i < 20; ++i) EXPECT_LT(sut.place_of("class-" + std::to_string(i)), 8);
  EXPECT_EQ(sut.all().size(), ClassServices::kMost);
  EXPECT_EQ(sut.all().back().name, kOtherClasses);
  EXPECT_EQ(sut.place_of("default"), 0);
  EXPECT_EQ(sut.place_of("class-3"), 4);
  EXPECT_EQ(sut.place_of("class-19"), 7);
}

}  // namespace
}  // namespace kvd::core
