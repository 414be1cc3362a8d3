// A goal is missed when it passes, not when its token comes at last.
#include <gmock/gmock.h>

#include "kvd/core/controller.hpp"
#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// An engine whose requests have a second for the first token, and 100 ms for each other.
struct Goals {
  explicit Goals(bool places = false) : world(pool()) {
    engine = world.attach(small_model(), DomainId(1), places);
  }
  static Controller::Config pool() {
    Controller::Config config = small_pool(8);
    config.tuning.slo["default"] = {seconds(1), milliseconds(100), milliseconds(200)};
    return config;
  }
  void tick(Nanoseconds after = Nanoseconds(0)) {
    world.pass(after);
    world.feed(Tick{});
  }
  [[nodiscard]] Counters counters() { return world.controller->status(world.now).counters; }
  void expect_ttft(std::uint64_t met, std::uint64_t missed) {
    EXPECT_EQ(counters().ttft.met, met);
    EXPECT_EQ(counters().ttft.missed, missed);
  }
  void expect_tbt(std::uint64_t met, std::uint64_t missed) {
    EXPECT_EQ(counters().tbt.met, met);
    EXPECT_EQ(counters().tbt.missed, missed);
  }
  /// A request that has made its first token.
  void begin(std::int64_t max_new = 20) {
    ASSERT_EQ(world.submit(engine, 1, 8, max_new), ErrorCode::kOk);
    world.step_until_granted(engine);
    world.run_and_step(engine);
    expect_ttft(1, 0);
  }

  World world;
  EngineId engine;
};

TEST(ControllerGoals, AFirstTokenIsMissedOnceItsGoalPasses) {
  Goals it;
  ASSERT_EQ(it.world.submit(it.engine, 1, 8, 20), ErrorCode::kOk);
  it.tick(seconds(1));
  it.expect_ttft(0, 0);
  it.tick(milliseconds(1));
  it.expect_ttft(0, 1);
  it.tick(seconds(10));
  it.expect_ttft(0, 1);
  it.world.step_until_granted(it.engine);
  it.world.run_and_step(it.engine);
  it.expect_ttft(0, 1);
  it.tick(milliseconds(100));
  it.world.run_and_step(it.engine);
  it.expect_tbt(1, 0);
}

TEST(ControllerGoals, ADecodeThatStandsStillMissesOnceAnInterval) {
  Goals it;
  it.begin();
  it.tick(milliseconds(101));
  it.expect_tbt(0, 1);
  it.tick(seconds(5));
  it.world.run_and_step(it.engine);
  it.expect_tbt(0, 1);
  it.tick(milliseconds(101));
  it.expect_tbt(0, 2);
}

TEST(ControllerGoals, OneThatLeavesTheMomentItsGoalHasPassedIsCounted) {
  Goals it;
  ASSERT_EQ(it.world.submit(it.engine, 1, 8, 20), ErrorCode::kOk);
  ASSERT_EQ(it.world.submit(it.engine, 2, 8, 20), ErrorCode::kOk);
  it.world.pass(seconds(1));
  it.world.command(it.engine, Abort{RequestId(1)});
  it.expect_ttft(0, 0);
  it.world.pass(milliseconds(1));
  it.world.command(it.engine, Abort{RequestId(2)});
  it.expect_ttft(0, 1);
}

TEST(ControllerGoals, OneThatHasMadeAllItsTokensOwesNone) {
  Goals it;
  it.begin(1);
  it.tick(seconds(10));
  it.expect_tbt(0, 0);
}

Schedule::Request asks(std::uint64_t id, Schedule::State state, std::int64_t generated,
                       TimePoint arrived) {
  Schedule::Request request;
  request.request = RequestId(id);
  request.state = state;
  request.prompt = Tokens(16);
  request.generated = Tokens(generated);
  request.computed = generated > 0 ? Tokens(15 + generated) : Tokens(0);
  request.max_new = Tokens(20);
  request.arrived = arrived;
  return request;
}

/// An engine that places its blocks itself, and what it tells before its next step.
struct PlacedGoals : Goals {
  PlacedGoals() : Goals(true) {
    told.total_blocks = 10;
    told.free_blocks = 10;
  }
  Schedule::Request& ask(Schedule::State state, std::int64_t generated) {
    told.requests = {asks(1, state, generated, arrived)};
    if (generated > 0) told.requests[0].first_token = told.requests[0].last_token = world.now;
    world.command(engine, told);
    return told.requests[0];
  }

  TimePoint arrived = world.now;
  Schedule told;
};

TEST(ControllerGoals, OneThatItsEngineKeepsWaitingMissesItsFirstToken) {
  PlacedGoals it;
  it.told.free_blocks = 0;
  it.ask(Schedule::State::kWaiting, 0);
  it.world.pass(milliseconds(900));
  it.ask(Schedule::State::kWaiting, 0);
  it.tick(milliseconds(100));
  it.expect_ttft(0, 0);
  it.tick(milliseconds(1));
  it.expect_ttft(0, 1);
  it.ask(Schedule::State::kRunning, 1);
  it.expect_ttft(0, 1);
}

TEST(ControllerGoals, OneThatItsEngineHasParkedMissesItsNextToken) {
  PlacedGoals it;
  it.ask(Schedule::State::kRunning, 0);
  it.ask(Schedule::State::kRunning, 1);
  it.expect_ttft(1, 0);
  it.told.free_blocks = 0;
  it.ask(Schedule::State::kParked, 1);
  it.tick(milliseconds(101));
  it.expect_tbt(0, 1);
  it.world.pass(seconds(3));
  it.ask(Schedule::State::kRunning, 2);
  it.expect_tbt(0, 1);
  it.world.pass(milliseconds(30));
  it.ask(Schedule::State::kRunning, 3);
  it.expect_tbt(1, 1);
}

TEST(ControllerGoals, AnEngineForWhichNobodyWaitsHasNothingToAsk) {
  PlacedGoals it;
  it.ask(Schedule::State::kRunning, 0);
  it.ask(Schedule::State::kRunning, 1);
  it.tick(seconds(2));
  it.expect_tbt(0, 0);
  it.ask(Schedule::State::kRunning, 41);
  it.expect_tbt(40, 0);
}

TEST(ControllerGoals, OneThatWasLetInAndIsNotNamedAgainHadItsToken) {
  PlacedGoals it;
  it.world.pass(milliseconds(500));
  it.ask(Schedule::State::kWaiting, 0);
  it.tick(milliseconds(600));
  it.expect_ttft(0, 0);
  it.told.requests.clear();
  it.world.command(it.engine, it.told);
  it.expect_ttft(1, 0);
}

TEST(ControllerGoals, OneThatLeftTheLineOfAnEngineThatAsksNoMoreIsForgotten) {
  PlacedGoals it;
  it.told.free_blocks = 0;
  it.ask(Schedule::State::kWaiting, 0);
  it.world.pass(milliseconds(500));
  it.ask(Schedule::State::kWaiting, 0);
  it.tick(milliseconds(1001));
  it.expect_ttft(0, 0);
}

/// The class of that name, as the engine shows it.
ClassService served(Goals& it, const std::string& name) {
  const ControllerStatus status = it.world.controller->status(it.world.now);
  for (const ClassService& one : status.engines.at(0).service.classes) {
    if (one.name == name) return one;
  }
  return ClassService{};
}

TEST(ControllerGoals, EachClassOfAnEngineIsCountedByItself) {
  Goals it;
  it.begin();
  ASSERT_EQ(
      it.world.submit(it.engine,
                      Submit{RequestId(2), Tokens(8), Tokens(20), seconds(3), Nanoseconds(0)}, 20),
      ErrorCode::kOk);
  it.tick(seconds(4));
  EXPECT_EQ(served(it, "default").ttft.met, 1u);
  EXPECT_EQ(served(it, "default").tbt.missed, 1u);
  EXPECT_EQ(served(it, kOwnGoals).ttft.missed, 1u);
  EXPECT_DOUBLE_EQ(served(it, kOwnGoals).oldest.wait_s, 4);
  EXPECT_DOUBLE_EQ(served(it, kOwnGoals).oldest.goals, 4.0 / 3);
  EXPECT_EQ(served(it, "default").wait_s.counts[0], 1u);
}

}  // namespace
}  // namespace kvd::test
