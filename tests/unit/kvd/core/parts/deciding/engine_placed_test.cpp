// Engines that place their blocks themselves: what they are told, and what the policies are asked.
#include "kvd/core/deciding/engine_placed.hpp"

#include <gmock/gmock.h>

#include <string>

#include "ipc/vocabulary/slo_class.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using State = Schedule::State;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;

std::vector<std::uint64_t> ids(const std::vector<RequestId>& requests) {
  std::vector<std::uint64_t> out;
  out.reserve(requests.size());
  for (const RequestId id : requests) out.push_back(id.value);
  return out;
}

/// A hundred blocks of 16 tokens; steps of 10 ms; TTFT of 1 s, TBT of 30 ms.
class EnginePlacedTest : public PartsTest {
 protected:
  EnginePlacedTest() {
    Tuning wanted = ground.context.tuning;
    wanted.slo["default"] = {seconds(1), milliseconds(30), milliseconds(60)};
    ground.context.retune(wanted);
    session.class_id = ClassId();
    session.info.slo_class = "default";
    pass(seconds(100));
    told.total_blocks = 100;
    told.block_tokens = Tokens(16);
    told.last_step = milliseconds(10);
    told.last_step_decodes = 4;
  }

  void use(const char* rotation, const char* admission = "none") {
    Tuning wanted = ground.context.tuning;
    wanted.rotation.policy = rotation;
    wanted.admission.policy = admission;
    ground.context.retune(wanted);
  }
  Schedule::Request& add(std::uint64_t id, State state, std::int64_t prompt, Nanoseconds age) {
    Schedule::Request request;
    request.request = RequestId(id);
    request.state = state;
    request.prompt = Tokens(prompt);
    request.max_new = Tokens(500);
    request.arrived = ground.context.now - age;
    told.requests.push_back(request);
    return told.requests.back();
  }
  Schedule::Request& waits(std::uint64_t id, std::int64_t prompt, Nanoseconds age) {
    return add(id, State::kWaiting, prompt, age);
  }
  /// A request that decodes and whose next token is late in `slack`. It holds blocks for 16 *
  /// blocks - 8 tokens.
  Schedule::Request& runs(std::uint64_t id, std::int64_t blocks, Nanoseconds slack,
                          Nanoseconds age = seconds(5)) {
    Schedule::Request& request = add(id, State::kRunning, blocks * 16 - 18, age);
    const std::int64_t made = 11;
    request.generated = Tokens(made);
    request.computed = request.prompt + Tokens(made - 1);
    request.blocks = blocks;
    request.last_token = ground.context.now;
    request.first_token = ground.context.now + slack - milliseconds(30) * made;
    return request;
  }
  Schedule::Request& parked(std::uint64_t id, std::int64_t blocks, Nanoseconds slack) {
    Schedule::Request& request = runs(id, blocks, slack);
    request.state = State::kParked;
    request.blocks = 0;
    return request;
  }
  std::variant<ScheduleReply, Error> ask_any(const Session& of) {
    Command command;
    command.engine = of.id;
    command.reply_to = ReplyTo(++asked);
    sut.on_schedule(command, told);
    const std::vector<Reply> replies = emitted<Reply>();
    EXPECT_EQ(replies.back().reply_to, command.reply_to);
    if (const auto* error = std::get_if<Error>(&replies.back().body)) return *error;
    return std::get<ScheduleReply>(replies.back().body);
  }
  ScheduleReply ask() {
    auto reply = ask_any(session);
    EXPECT_TRUE(std::holds_alternative<ScheduleReply>(reply));
    return std::get<ScheduleReply>(reply);
  }

  Session& session = attach();
  Needs needs{ground};
  EnginePlaced sut{ground, needs};
  Schedule told;
  std::uint64_t asked = 0;
};

TEST_F(EnginePlacedTest, ASessionWhoseBlocksKvdPlacesIsRefused) {
  const auto reply = ask_any(attach());
  EXPECT_EQ(std::get<Error>(reply).code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(std::get<Error>(reply).message, HasSubstr("attach without a shape"));
}

TEST_F(EnginePlacedTest, AnIdThatIsNamedTwiceIsRefusedAndTeachesNothing) {
  waits(3, 16, seconds(0));
  waits(3, 16, seconds(0));
  EXPECT_EQ(std::get<Error>(ask_any(session)).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(session.totals.steps, 0u);
  EXPECT_FALSE(session.placed);
}

TEST_F(EnginePlacedTest, WhileNobodyWaitsNothingIsDecided) {
  told.free_blocks = 1;
  runs(1, 40, seconds(9));
  runs(2, 59, milliseconds(-500));
  for (const char* policy : {"unified", "lvf", "fcfs", "si_code", "waiting_first", "srtf", "ltr"}) {
    use(policy);
    pass(milliseconds(10));
    const ScheduleReply reply = ask();
    EXPECT_THAT(reply.preempt, IsEmpty()) << policy;
    EXPECT_THAT(reply.admit, IsEmpty()) << policy;
    EXPECT_EQ(reply.prefill_tokens, UINT32_MAX) << policy;
  }
}

TEST_F(EnginePlacedTest, PromptsComeIntoFreeRoomByArrival) {
  told.free_blocks = 20;
  waits(1, std::int64_t{16} * 5, milliseconds(10));
  waits(2, std::int64_t{16} * 10, milliseconds(20));
  waits(3, std::int64_t{16} * 6, milliseconds(5));
  EXPECT_THAT(ids(ask().admit), ElementsAre(2, 1)) << "16 blocks of 20";
}

TEST_F(EnginePlacedTest, KnowsWhyThoseOutsideStayThere) {
  const auto why = [&](std::size_t i) { return session.placed->all.at(i).waits_for; };
  told.free_blocks = 3;
  waits(1, std::int64_t{16} * 2, milliseconds(10));
  waits(2, std::int64_t{16} * 50, milliseconds(5));
  (void)ask();
  EXPECT_TRUE(session.placed->all[0].let_in);
  EXPECT_EQ(why(0), WaitReason::kNone);
  EXPECT_EQ(why(1), WaitReason::kMemory);
  told.requests.clear();
  told.max_running = 1;
  runs(3, 10, seconds(1));
  waits(4, 16, milliseconds(5));
  (void)ask();
  EXPECT_EQ(why(0), WaitReason::kNone);
  EXPECT_EQ(why(1), WaitReason::kSeats);
}

TEST_F(EnginePlacedTest, APromptTooLargeForEverythingComesInWhenAllIsFree) {
  waits(1, std::int64_t{16} * 1000, milliseconds(10));
  told.free_blocks = 99;
  EXPECT_THAT(ask().admit, IsEmpty());
  told.free_blocks = 100;
  EXPECT_THAT(ids(ask().admit), ElementsAre(1));
}

TEST_F(EnginePlacedTest, SomebodyWithTokensSavedUpLeavesForALatePrompt) {
  told.free_blocks = 10;
  runs(1, 45, milliseconds(20));
  runs(2, 45, milliseconds(300));
  waits(3, std::int64_t{16} * 40, milliseconds(400));
  EXPECT_THAT(ask().preempt, IsEmpty()) << "it may still wait";
  told.requests[2].arrived -= milliseconds(200);
  const ScheduleReply reply = ask();
  EXPECT_THAT(ids(reply.preempt), ElementsAre(2));
  EXPECT_THAT(ids(reply.admit), ElementsAre(3));
  EXPECT_EQ(ground.context.counters.schedule.calls, 2u);
  EXPECT_EQ(ground.context.counters.schedule.preempted, 1u);
  EXPECT_EQ(ground.context.counters.schedule.admitted, 1u);
}

TEST_F(EnginePlacedTest, OneThatCameInIsNoVictimBeforeAToken) {
  told.free_blocks = 10;
  parked(1, 45, milliseconds(300));
  (void)ask();
  told.requests.clear();
  runs(1, 45, milliseconds(300));
  runs(2, 45, milliseconds(20)).max_new =
      Tokens(12);  // the rest of the answer cannot make up for any wait
  waits(3, std::int64_t{16} * 40, milliseconds(600));
  EXPECT_THAT(ask().preempt, IsEmpty());
  told.requests[0].generated += Tokens(1);
  told.requests[0].computed += Tokens(1);
  EXPECT_THAT(ids(ask().preempt), ElementsAre(1));
}

TEST_F(EnginePlacedTest, ALivePolicyDecides) {
  told.free_blocks = 10;
  told.block_bytes = Bytes(0);
  runs(1, 45, milliseconds(300));
  runs(2, 45, milliseconds(20));
  waits(3, std::int64_t{16} * 40, milliseconds(600));
  use("fcfs");
  EXPECT_THAT(ask().preempt, IsEmpty());
  use("unified");
  EXPECT_THAT(ids(ask().preempt), ElementsAre(1)) << "the only one with tokens saved up";
  use("lvf");
  pass(seconds(1));
  const ScheduleReply reply = ask();
  EXPECT_THAT(ids(reply.admit), ElementsAre(3));
  EXPECT_EQ(reply.preempt.size(), 1u) << "whatever it has saved up";
}

TEST_F(EnginePlacedTest, TheWeightsInForceDecide) {
  told.free_blocks = 10;
  runs(2, 90, milliseconds(300));
  waits(3, std::int64_t{16} * 40, milliseconds(400));
  EXPECT_THAT(ask().preempt, IsEmpty());
  Tuning wanted = ground.context.tuning;
  wanted.rotation.beta_f = 0.3;
  ground.context.retune(wanted);
  EXPECT_THAT(ids(ask().preempt), ElementsAre(2));
}

TEST_F(EnginePlacedTest, GoalsAreTheRequestsElseItsClassesElseItsDomains) {
  Tuning wanted = ground.context.tuning;
  wanted.slo["chat"] = {milliseconds(200), milliseconds(30), milliseconds(60)};
  ground.context.retune(wanted);
  told.free_blocks = 10;
  runs(2, 90, milliseconds(300));
  Schedule::Request& prompt = waits(3, std::int64_t{16} * 40, milliseconds(150));
  EXPECT_THAT(ask().preempt, IsEmpty());
  prompt.slo_class = slo_class_number("chat");
  EXPECT_THAT(ids(ask().preempt), ElementsAre(2)) << "0.15 s is more than half of 0.2 s";
  prompt.slo_class = slo_class_number("no such class");
  EXPECT_THAT(ask().preempt, IsEmpty());
  prompt.ttft = milliseconds(250);
  EXPECT_THAT(ids(ask().preempt), ElementsAre(2));
}

TEST_F(EnginePlacedTest, AnAnswerComesBackBeforeItsLongestGapUnlessItsClientPaces) {
  told.free_blocks = 10;
  parked(1, 45, seconds(30)).last_token = ground.context.now - milliseconds(900);
  runs(2, 90, seconds(60));
  EXPECT_THAT(ids(ask().preempt), ElementsAre(2)) << "a second, as ten goals are less";
  Tuning wanted = ground.context.tuning;
  wanted.slo["default"].gap = seconds(3);
  ground.context.retune(wanted);
  EXPECT_THAT(ask().preempt, IsEmpty());
  wanted.slo["default"].gap.reset();
  wanted.rotation.pacing = "client";
  ground.context.retune(wanted);
  EXPECT_THAT(ask().preempt, IsEmpty());
}

TEST_F(EnginePlacedTest, ARequestThatNamesItsGapIsOutForThatLongAtMost) {
  told.free_blocks = 10;
  parked(1, 45, seconds(30)).last_token = ground.context.now - milliseconds(300);
  runs(2, 90, seconds(60));
  EXPECT_THAT(ask().preempt, IsEmpty()) << "a second is far";
  EXPECT_EQ(session.placed->find(RequestId(9)), nullptr);
  session.placed->find(RequestId(1))->own_gap = milliseconds(400);
  EXPECT_THAT(ids(ask().preempt), ElementsAre(2));
  EXPECT_THAT(ids(ask().preempt), ElementsAre(2)) << "said once";
  session.placed->find(RequestId(1))->own_gap = Nanoseconds(0);
  EXPECT_THAT(ask().preempt, IsEmpty()) << "its class's again";
}

TEST_F(EnginePlacedTest, WhereNobodySetGoalsTheEngineCanDoWhatItShows) {
  Tuning wanted = ground.context.tuning;
  wanted.slo["default"] = Slo{};
  ground.context.retune(wanted);
  told.free_blocks = 10;
  runs(2, 90, seconds(9));
  waits(3, std::int64_t{16} * 40, milliseconds(400));
  EXPECT_THAT(ask().preempt, IsEmpty()) << "not measured yet: 0.4 s of 5 s";
  told.last_step = milliseconds(110);
  told.last_step_prefill = Tokens(1000);
  (void)ask();
  EXPECT_THAT(ids(ask().preempt), ElementsAre(2)) << "0.4 s of 8 x (10 ms + 640 x 0.1 ms)";
  wanted.slo["default"].ttft = seconds(4);
  ground.context.retune(wanted);
  EXPECT_THAT(ask().preempt, IsEmpty()) << "a goal that somebody set";
}

TEST_F(EnginePlacedTest, NoMoreComeInThanThereAreSeats) {
  told.free_blocks = 90;
  told.max_running = 3;
  runs(1, 5, milliseconds(20));
  runs(2, 5, milliseconds(20));
  waits(3, 16, milliseconds(20));
  waits(4, 16, milliseconds(10));
  EXPECT_THAT(ids(ask().admit), ElementsAre(3));
  told.max_running = 2;
  EXPECT_THAT(ask().admit, IsEmpty());
}

TEST_F(EnginePlacedTest, NobodyLeavesForThoseWhoFindNoSeat) {
  told.free_blocks = 0;
  told.max_running = 4;
  for (std::uint64_t id = 1; id <= 4; ++id) runs(id, 25, milliseconds(300));
  waits(5, 16, milliseconds(600));
  EXPECT_THAT(ask().preempt, IsEmpty());
  told.max_running = 5;
  EXPECT_THAT(ask().preempt, testing::SizeIs(1));
}

TEST_F(EnginePlacedTest, WhereThoseWhoRunLackRoomTheLatestGivesWay) {
  use("fcfs");
  told.free_blocks = 0;
  for (std::uint64_t id = 1; id <= 4; ++id) {
    Schedule::Request& request = runs(id, 25, milliseconds(20), seconds(10) - seconds(id));
    request.prompt += Tokens(8);
    request.computed += Tokens(8);  // full blocks: each takes another one
  }
  const ScheduleReply alone = ask();
  EXPECT_THAT(ids(alone.preempt), ElementsAre(4)) << "or the engine would choose by itself";
  waits(5, 16, milliseconds(600));
  const ScheduleReply reply = ask();
  EXPECT_THAT(ids(reply.preempt), ElementsAre(4));
  EXPECT_THAT(reply.admit, IsEmpty());
}

TEST_F(EnginePlacedTest, UnderUnifiedWhoseTokensLastLongestGivesWay) {
  told.free_blocks = 0;
  for (std::uint64_t id = 1; id <= 4; ++id) {
    Schedule::Request& request = runs(id, 25, milliseconds(id == 2 ? 300 : 20));
    request.prompt += Tokens(8);
    request.computed += Tokens(8);
  }
  EXPECT_THAT(ids(ask().preempt), ElementsAre(2));
}

TEST_F(EnginePlacedTest, OneThatIsLateIsPassedUntilThirtyTwoOfItsGoalsAreOver) {
  told.free_blocks = 1;
  waits(1, 16, seconds(2));
  waits(2, 16, milliseconds(1));
  EXPECT_THAT(ids(ask().admit), ElementsAre(2)) << "it can still be in time, the other one cannot";
  told.requests[0].arrived -= seconds(31);
  EXPECT_THAT(ids(ask().admit), ElementsAre(1));
}

TEST_F(EnginePlacedTest, TheOnlyOneThatRunsIsNotPreemptedForItsOwnGrowth) {
  told.free_blocks = 0;
  Schedule::Request& request = runs(1, 100, milliseconds(20));
  request.prompt += Tokens(8);
  request.computed += Tokens(8);
  EXPECT_THAT(ask().preempt, IsEmpty());
}

TEST_F(EnginePlacedTest, RoomForPromptsUnderWayIsKeptFromOthers) {
  told.free_blocks = 30;
  Schedule::Request& prefills = add(1, State::kRunning, std::int64_t{16} * 40, milliseconds(20));
  prefills.computed = Tokens(std::int64_t{16} * 12);
  prefills.blocks = 12;
  told.max_batched_tokens = Tokens(std::int64_t{16} * 4);
  waits(2, std::int64_t{16} * 5, milliseconds(10));
  EXPECT_THAT(ask().admit, IsEmpty()) << "28 blocks are still to come";
  told.free_blocks = 34;
  EXPECT_THAT(ids(ask().admit), ElementsAre(2));
}

TEST_F(EnginePlacedTest, AGrowthReserveIsKeptFromOthers) {
  told.free_blocks = 6;
  for (std::uint64_t id = 1; id <= 4; ++id) runs(id, 20, milliseconds(20));
  waits(9, std::int64_t{16} * 5, milliseconds(10));
  EXPECT_THAT(ask().admit, IsEmpty()) << "half a block for each that runs";
  told.free_blocks = 7;
  EXPECT_THAT(ids(ask().admit), ElementsAre(9));
}

TEST_F(EnginePlacedTest, WhereDramIsNearlyFullNobodyLeavesForOthersAndOthersComeIn) {
  told.block_bytes = kSlot;
  told.free_blocks = 10;
  runs(1, 45, milliseconds(300));
  runs(2, 45, milliseconds(20));
  waits(3, std::int64_t{16} * 40, milliseconds(600));
  EXPECT_THAT(ids(ask().preempt), ElementsAre(1));
  Session& holder = attach();
  const auto held = ground.store.tiers.take(Tier::kDram, holder.taker(), 60);
  ASSERT_EQ(held.code, ErrorCode::kOk);
  EXPECT_THAT(ask().preempt, IsEmpty());
  waits(4, 16, milliseconds(601));
  EXPECT_THAT(ids(ask().admit), ElementsAre(4));
  ground.store.tiers.free(Tier::kDram, held.slots);
}

TEST_F(EnginePlacedTest, NobodyLeavesForOthersWhoCannotBeParked) {
  told.free_blocks = 10;
  runs(1, 45, milliseconds(300));
  runs(2, 45, milliseconds(20));
  waits(3, std::int64_t{16} * 40, milliseconds(600));
  (void)ask();
  for (const char* policy : {"lvf", "waiting_first"}) {
    use(policy);
    pass(seconds(1));
    for (Schedule::Request& request : told.requests) request.stays = false;
    EXPECT_EQ(ask().preempt.size(), 1u) << policy;
    told.requests[0].stays = told.requests[1].stays = true;
    const ScheduleReply reply = ask();
    EXPECT_THAT(reply.preempt, IsEmpty()) << policy;
    EXPECT_THAT(reply.admit, IsEmpty()) << policy;
  }
}

TEST_F(EnginePlacedTest, WhereThoseLackRoomWhoCannotBeParkedOthersGiveWay) {
  told.free_blocks = 0;
  for (std::uint64_t id = 1; id <= 4; ++id) {
    Schedule::Request& request = runs(id, 25, milliseconds(20), seconds(10) - seconds(id));
    request.prompt += Tokens(8);
    request.computed += Tokens(8);  // full blocks: each takes another one
    request.stays = id != 2;
  }
  for (const char* policy : {"fcfs", "unified", "lvf"}) {
    use(policy);
    told.requests[1].stays = false;
    EXPECT_THAT(ids(ask().preempt), ElementsAre(2)) << policy << ": not the latest";
    told.requests[1].stays = true;
    EXPECT_THAT(ask().preempt, IsEmpty()) << policy << ": the engine finds room by itself";
  }
}

TEST_F(EnginePlacedTest, NoPromptPassesOneThatIsComputedAgain) {
  told.free_blocks = 20;
  for (std::uint64_t id = 1; id <= 2; ++id) {
    Schedule::Request& request = runs(id, 30, milliseconds(20), seconds(id));
    request.state = State::kWaiting;
    request.blocks = 0;
  }
  waits(3, 16, milliseconds(900));
  for (const char* policy : {"unified", "lvf", "fcfs", "srtf"}) {
    use(policy);
    told.free_blocks = 20;
    EXPECT_THAT(ask().admit, IsEmpty()) << policy << ": they would take what it lacks";
    told.free_blocks = 100;
    EXPECT_THAT(ids(ask().admit), ElementsAre(2)) << policy << ": the rest when it is in";
  }
}

TEST_F(EnginePlacedTest, WhatTheyHoldWhoCannotBeParkedIsNoRoom) {
  told.free_blocks = 10;
  use("lvf", "whole_request");
  runs(1, 90, milliseconds(900)).stays = true;
  waits(2, std::int64_t{16} * 40, milliseconds(600));
  EXPECT_THAT(ask().admit, IsEmpty());
  told.requests[0].stays = false;
  pass(seconds(1));
  EXPECT_THAT(ids(ask().admit), ElementsAre(2));
}

TEST_F(EnginePlacedTest, TheAdmissionPolicyHoldsPromptsBack) {
  told.free_blocks = 50;
  use("fcfs", "whole_request");
  runs(1, 50, milliseconds(20));
  waits(2, std::int64_t{16} * 50, milliseconds(20));
  waits(3, 16, milliseconds(10));
  EXPECT_THAT(ask().admit, IsEmpty()) << "vLLM's watermark, and no overtaking";
  use("fcfs", "none");
  EXPECT_THAT(ids(ask().admit), ElementsAre(2));
}

TEST_F(EnginePlacedTest, AGuardBoundsPromptTokensOfAStep) {
  use("lvf+guards", "none+guards");
  told.free_blocks = 50;
  for (int i = 1; i <= 20; ++i) {
    told.last_step = milliseconds(10 + i);
    told.last_step_prefill = Tokens(std::int64_t{100} * i);
    (void)ask();
  }
  told.last_step_prefill = Tokens(0);
  told.last_step = milliseconds(10);
  (void)ask();
  runs(1, 20, milliseconds(29));
  waits(2, std::int64_t{16} * 10, milliseconds(20));
  const std::uint32_t bound = ask().prefill_tokens;
  EXPECT_GE(bound, 16u);
  EXPECT_LE(bound, 160u);
  use("lvf", "none");
  EXPECT_EQ(ask().prefill_tokens, UINT32_MAX);
}

// Since the last step without prompts the contexts of those who decode have grown.
TEST_F(EnginePlacedTest, StepsThatPromptsMakeLongerThanTheyCostBoundThem) {
  use("unified", "none+guards");
  told.free_blocks = 50;
  told.last_step_decodes = 1;
  told.last_step = milliseconds(10);
  for (int i = 0; i < 20; ++i) (void)ask();
  const auto bound_after = [&](int grown_ms) {
    for (int i = 0; i < 200; ++i) {
      told.last_step_prefill = Tokens(std::int64_t{100} * (i % 5 + 1));
      told.last_step = milliseconds(10 + grown_ms + 20 * (i % 5 + 1));
      (void)ask();
    }
    told.requests.clear();
    Schedule::Request& decodes = runs(1, 20, seconds(0));
    decodes.tbt = milliseconds(100);
    decodes.first_token = ground.context.now - decodes.tbt * (decodes.generated.value - 1);
    waits(2, std::int64_t{16} * 40, milliseconds(20));
    const std::uint32_t bound = ask().prefill_tokens;
    told.requests.clear();
    return bound;
  };
  EXPECT_THAT(bound_after(0), AllOf(Ge(350u), Le(450u))) << "90 - 10 ms at 0.2 ms each";
  EXPECT_THAT(bound_after(40), AllOf(Ge(150u), Le(250u))) << "90 - 10 - 40 ms";
}

TEST_F(EnginePlacedTest, TheBoundOfAStepFallsWhereSomebodyIsParked) {
  use("unified", "none+guards");
  told.free_blocks = 50;
  runs(1, 20, milliseconds(29));
  waits(2, std::int64_t{16} * 10, milliseconds(20));
  EXPECT_NE(ask().prefill_tokens, UINT32_MAX);
  parked(3, 60, seconds(9));
  EXPECT_EQ(ask().prefill_tokens, UINT32_MAX) << "memory is short, and chunks cost throughput";
}

TEST_F(EnginePlacedTest, WildNumbersDoNoHarm) {
  constexpr std::int64_t kMost = 4294967295;
  told.total_blocks = told.free_blocks = 1;
  told.block_bytes = Bytes(std::int64_t{1} << 50);
  told.block_tokens = Tokens(1);
  for (std::uint64_t id = 1; id <= 2000; ++id) {
    const State state = id % 3 == 0   ? State::kRunning
                        : id % 3 == 1 ? State::kParked
                                      : State::kWaiting;
    Schedule::Request& request = add(id, state, kMost, Nanoseconds(std::int64_t{1} << 61));
    request.generated = request.computed = request.max_new = Tokens(kMost);
    request.blocks = request.blocks_to_return = kMost;
    request.first_token = ground.context.now;
  }
  for (const char* policy : {"unified", "lvf", "fcfs", "srtf", "si_code"}) {
    use(policy, "layerkv");
    const ScheduleReply reply = ask();
    EXPECT_LT(reply.preempt.size(), 2000u / 3) << "one stays";
    EXPECT_THAT(reply.admit, IsEmpty()) << "those who run lack room";
  }
}

}  // namespace
}  // namespace kvd::core
