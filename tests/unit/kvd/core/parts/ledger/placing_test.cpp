// What is learned, from call to call, of an engine that places its blocks itself.
#include "kvd/core/ledger/placing.hpp"

#include <gmock/gmock.h>

#include <chrono>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using State = Schedule::State;
using ::testing::DoubleNear;
using ::testing::Optional;

constexpr Slo kGoal{seconds(1), milliseconds(100), milliseconds(200)};

class PlacingTest : public PartsTest {
 protected:
  static Schedule::Request request(std::uint64_t id, State state, std::int64_t generated) {
    Schedule::Request made;
    made.request = RequestId(id);
    made.state = state;
    made.prompt = Tokens(100);
    made.generated = Tokens(generated);
    made.computed = generated > 0 ? Tokens(99 + generated) : Tokens(0);
    made.max_new = Tokens(1000);
    return made;
  }
  /// Its last token came `ago`.
  static Schedule::Request made_tokens(std::uint64_t id, std::int64_t count, TimePoint first,
                                       TimePoint last, State state = State::kRunning) {
    Schedule::Request made = request(id, state, count);
    made.first_token = first;
    made.last_token = last;
    return made;
  }
  void learn(std::vector<Schedule::Request> requests) {
    ground.context.now = now;
    told.requests = std::move(requests);
    ASSERT_FALSE(sut.named_twice(told));
    std::vector<Goal> goals;
    for (const Schedule::Request& request : told.requests) {
      goals.push_back({request.prompt, request.max_new, kGoal, 0, {}});
    }
    called = sut.learn(session, told, goals);
  }
  planner::RotationRequest seen(std::size_t i) { return ground.knowledge.as_rotation(*called[i]); }
  std::int64_t saved_up(std::size_t i) { return ground.knowledge.saved_up(*called[i]); }
  [[nodiscard]] const std::vector<PlacedRequest>& all() const { return session.placed->all; }
  [[nodiscard]] double due(std::size_t i) const { return to_seconds(*all()[i].times.due); }
  void step(milliseconds took, std::int64_t decodes, std::int64_t prompts = 0) {
    told.last_step = took;
    told.last_step_decodes = decodes;
    told.last_step_prefill = Tokens(prompts);
    learn({});
  }

  TimePoint now{seconds(10)};
  Schedule told;
  Session& session = attach();
  Costs& costs = session.costs;
  Placing sut{ground.context, ground.lateness};
  std::span<PlacedRequest* const> called;
};

TEST_F(PlacingTest, AnIdThatIsNamedTwiceIsFound) {
  told.requests = {request(4, State::kRunning, 1), request(2, State::kWaiting, 0),
                   request(4, State::kParked, 1)};
  EXPECT_THAT(sut.named_twice(told), Optional(RequestId(4)));
  told.requests.pop_back();
  EXPECT_FALSE(sut.named_twice(told));
}

TEST_F(PlacingTest, GoalsOfItsOwnAreThreeStepsAndEightPrefills) {
  step(milliseconds(20), 4);
  EXPECT_EQ(Knowledge::own_goals(costs, Tokens(100)), std::nullopt) << "no prompt was seen yet";
  step(milliseconds(220), 4, 1000);
  const auto own = Knowledge::own_goals(costs, Tokens(800));
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->tbt, milliseconds(60));
  EXPECT_EQ(own->tpot, milliseconds(120));
  EXPECT_NEAR(to_seconds(own->ttft), 8 * (0.02 + 800 * 0.0002), 1e-6);
  EXPECT_EQ(own->longest_gap(), seconds(1));
}

TEST_F(PlacingTest, GoalsOfItsOwnAreNotTighterThanPeopleNotice) {
  step(milliseconds(4), 4);
  step(milliseconds(14), 4, 1000);
  const auto own = Knowledge::own_goals(costs, Tokens(400));
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->tbt, milliseconds(30));
  EXPECT_EQ(own->ttft, milliseconds(800));
}

TEST_F(PlacingTest, EachTokenIsDueAnIntervalAfterTheOneBefore) {
  learn({made_tokens(7, 1, now, now)});
  EXPECT_THAT(due(0), DoubleNear(10.1, 1e-9));
  now += milliseconds(30);
  learn({made_tokens(7, 2, now - milliseconds(30), now)});
  now += milliseconds(30);
  learn({made_tokens(7, 3, now - milliseconds(60), now)});
  EXPECT_THAT(due(0), DoubleNear(10.3, 1e-9));
  EXPECT_EQ(saved_up(0), 2) << "of three made one is with the user";
  now += milliseconds(50);
  learn({made_tokens(7, 3, now - milliseconds(110), now - milliseconds(50))});
  EXPECT_EQ(saved_up(0), 1);
}

TEST_F(PlacingTest, ALateTokenStartsTheClockAnew) {
  learn({made_tokens(7, 1, now, now)});
  now += milliseconds(500);
  learn({made_tokens(7, 2, now - milliseconds(500), now)});
  EXPECT_THAT(due(0), DoubleNear(10.6, 1e-9));
  EXPECT_EQ(saved_up(0), 0);
}

TEST_F(PlacingTest, OfOneNotSeenBeforeTokensCountAsIfTheyHadComeEvenly) {
  learn({made_tokens(1, 11, now - milliseconds(500), now),
         made_tokens(2, 11, now - milliseconds(2000), now)});
  EXPECT_THAT(due(0), DoubleNear(10.6, 1e-9)) << "eleven after 9.5";
  EXPECT_THAT(due(1), DoubleNear(10.1, 1e-9)) << "too slow to save any up";
}

TEST_F(PlacingTest, TokensOfALongWhileCountAsTheyCame) {
  learn({made_tokens(7, 1, now, now)});
  now += seconds(2);  // nobody waited, so nobody asked
  learn({made_tokens(7, 41, now - seconds(2), now)});
  EXPECT_THAT(due(0), DoubleNear(14.1, 1e-9)) << "41 intervals after the first";
  now += seconds(9);
  learn({made_tokens(7, 44, now - seconds(11), now)});
  EXPECT_THAT(due(0), DoubleNear(21.1, 1e-9)) << "three in nine seconds: all late";
}

TEST_F(PlacingTest, TheClockOfTheEngineCounts) {
  // The engine stands still for nine of our ten seconds.
  auto told_of = [&](std::int64_t count, State state, TimePoint age) {
    auto made = made_tokens(7, count, now - age, now, state);
    made.arrived = now - age;
    return made;
  };
  learn({told_of(5, State::kRunning, seconds(1))});
  const double saved = due(0) - to_seconds(now);
  now += seconds(10);
  learn({told_of(5, State::kParked, seconds(2))});
  EXPECT_THAT(due(0) - to_seconds(now), DoubleNear(saved - 1, 1e-9));
}

TEST_F(PlacingTest, OneThatCameInIsFreshUntilItMakesAToken) {
  learn({made_tokens(7, 5, now, now, State::kParked)});
  now += milliseconds(10);
  learn({made_tokens(7, 5, now, now)});
  EXPECT_FALSE(seen(0).made_token);
  EXPECT_EQ(seen(0).t_run, planner::Seconds(now));
  learn({made_tokens(7, 5, now, now)});
  EXPECT_FALSE(seen(0).made_token);
  learn({made_tokens(7, 6, now, now)});
  EXPECT_TRUE(seen(0).made_token);
}

TEST_F(PlacingTest, LatenessIsThatOfReturnsAndNotOfAbsences) {
  learn({made_tokens(7, 1, now, now, State::kParked)});
  now += milliseconds(90);
  learn({made_tokens(7, 1, now, now)});
  EXPECT_EQ(costs.lateness.mean(), 0) << "away for long, back in time";
  learn({made_tokens(7, 1, now, now, State::kParked)});
  now += milliseconds(30);
  learn({made_tokens(7, 1, now, now)});
  EXPECT_THAT(costs.lateness.mean(), DoubleNear(0.01, 1e-9)) << "mean of 0 and 20 ms";
  EXPECT_EQ(session.totals.rotations_out, 1u);
  EXPECT_EQ(session.totals.rotations_in, 2u);
}

TEST_F(PlacingTest, ThePaceIsMeasuredWhileSomebodyWaitsOnly) {
  std::int64_t made = 1;
  const auto second_of_ten = [&](bool waiting) {
    for (int i = 0; i < 10; ++i) {
      now += milliseconds(110);
      learn({made_tokens(7, made += 11, now, now)});
      session.placed->waited = waiting;
    }
  };
  second_of_ten(false);
  second_of_ten(false);
  EXPECT_EQ(costs.tokens_per_s, 0);
  second_of_ten(true);
  second_of_ten(true);
  EXPECT_THAT(costs.tokens_per_s, DoubleNear(100, 1));
  EXPECT_EQ(session.totals.tokens, 40u * 11 - 11);
}

TEST_F(PlacingTest, StepsShowWhatADecodeAndAPromptTokenCost) {
  EXPECT_EQ(Knowledge::decode_s(costs, 4), 0);
  EXPECT_EQ(costs.prefill_token_s, 0);
  for (int i = 0; i < 50; ++i) {
    const int n = 2 + i % 8;
    step(milliseconds(5 + n), n);
    step(milliseconds(5 + n + 10 * (i % 5 + 1)), n, std::int64_t{100} * (i % 5 + 1));
  }
  EXPECT_THAT(Knowledge::decode_s(costs, 4), DoubleNear(0.009, 1e-6));
  EXPECT_THAT(Knowledge::decode_s(costs, 12), DoubleNear(0.017, 1e-6));
  EXPECT_THAT(costs.prefill_token_s, DoubleNear(0.0001, 1e-6));
}

TEST_F(PlacingTest, StepsWithPromptsShowWhatContextsHaveGrownBy) {
  for (int i = 0; i < 50; ++i) step(milliseconds(10), 4);
  for (int i = 0; i < 300; ++i) {
    step(milliseconds(10 + 20 + 10 * (i % 5 + 1)), 4, std::int64_t{100} * (i % 5 + 1));
  }
  EXPECT_THAT(Knowledge::decode_s(costs, 4), DoubleNear(0.010, 1e-6)) << "without prompts";
  EXPECT_THAT(costs.prefill_token_s, DoubleNear(0.0001, 1e-6));
  EXPECT_THAT(Knowledge::decode_beside_prefill_s(costs, 4), DoubleNear(0.030, 1e-6));
}

// Chunks of one size do not show which part of their time is that of their tokens.
TEST_F(PlacingTest, StepsWithPromptsOfOneSizeShowNoGrowth) {
  for (int i = 0; i < 50; ++i) step(milliseconds(10), 4);
  for (int i = 0; i < 300; ++i) step(milliseconds(60), 4, 500);
  EXPECT_THAT(Knowledge::decode_beside_prefill_s(costs, 4), DoubleNear(0.010, 1e-6));
  EXPECT_THAT(costs.prefill_token_s, DoubleNear(0.0001, 1e-6));
}

TEST_F(PlacingTest, StepsThatCannotBeTeachNothing) {
  step(milliseconds(10), 4);
  told.last_step = Nanoseconds(std::int64_t{1} << 62);
  learn({});
  step(milliseconds(0), 4);
  EXPECT_THAT(Knowledge::decode_s(costs, 4), DoubleNear(0.01, 1e-9));
}

TEST_F(PlacingTest, OneThatRanAndIsNotNamedAnyMoreShowsHowLongAnswersAre) {
  for (std::uint64_t id = 1; id <= 10; ++id) {
    learn({made_tokens(id, 40, now, now), made_tokens(100 + id, 700, now, now, State::kParked)});
  }
  learn({});
  EXPECT_EQ(costs.lengths.samples(), 10u) << "parked ones may be left out and come back";
  learn({made_tokens(50, 3, now, now)});
  EXPECT_EQ(seen(0).output_tokens, Tokens(40));
}

TEST_F(PlacingTest, APromptThatWasParkedBeforeItsFirstTokenWaitsLikeAnyOther) {
  learn({request(1, State::kParked, 0), made_tokens(2, 4, now, now, State::kWaiting)});
  EXPECT_TRUE(seen(0).counts_as_waiting());
  EXPECT_FALSE(seen(1).counts_as_waiting()) << "to be recomputed, its user waits for a token";
}

TEST_F(PlacingTest, WildNumbersDoNoHarm) {
  auto wild = made_tokens(1, 4294967295, TimePoint(INT64_MIN / 2), TimePoint(INT64_MAX / 2));
  wild.prompt = wild.computed = wild.max_new = Tokens(4294967295);
  for (int i = 0; i < 3; ++i) learn({wild});
  EXPECT_GE(saved_up(0), 0);
  EXPECT_GT(due(0), 0) << "and no time to come that no clock shows";
}

}  // namespace
}  // namespace kvd::core
