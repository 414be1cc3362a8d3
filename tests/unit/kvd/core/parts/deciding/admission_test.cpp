// Tests who may prefill: what the policy is asked at a step, and who is held back by its answer.
#include "kvd/core/deciding/admission.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// HBM has 32 slots; a prompt of 16 tokens takes eight of them.
class AdmissionTest : public PartsTest {
 protected:
  explicit AdmissionTest(Config config = small_config()) : PartsTest(std::move(config)) {}

  AdmissionInput asked(Session& session) {
    std::vector<Request*> queue;
    AdmissionInput input = sut.admission_input(session, queue);
    EXPECT_EQ(queue.size(), input.queue.size());
    EXPECT_EQ(input.snapshot.queue.size(), input.queue.size());
    EXPECT_EQ(input.snapshot.decoding.size(), input.decoding.size());
    return input;
  }
  Request& decoding(Session& session, std::int64_t tokens, std::int64_t max_new = 8) {
    Request& request = running(session, tokens, max_new);
    request.times.has_token = true;
    return request;
  }
  Request& begun(Session& session, std::int64_t prompt, std::int64_t done) {
    Request& request = running(session, done);
    request.phase = Phase::kPrompt;
    request.goal.prompt = Tokens(prompt);
    return request;
  }
  void use(const char* admission, const char* rotation = "unified", const char* overload = "ttft") {
    Tuning wanted = ground.context.tuning;
    wanted.admission.policy = admission;
    wanted.rotation.policy = rotation;
    wanted.rotation.overload = overload;
    ground.context.retune(wanted);
  }
  static std::vector<bool> held_back(const std::vector<Request*>& requests) {
    std::vector<bool> held;
    held.reserve(requests.size());
    for (const Request* r : requests) held.push_back(r->verdict == Verdict::kHeldBack);
    return held;
  }

  Needs needs{ground};
  Supply supply{ground, needs};
  Admission sut{ground, needs, supply};
};

TEST_F(AdmissionTest, PromptsThatHaveBegunComeFirst) {
  Session& session = attach();
  Request& second = submit(session, 8, 8);
  second.times.arrived = TimePoint(seconds(0));
  Request& half_done = begun(session, 12, 4);
  Request& last_chunk = begun(session, 8, 8);
  const AdmissionInput input = asked(session);
  EXPECT_THAT(input.queue, ElementsAre(half_done.key, second.key));
  EXPECT_TRUE(input.snapshot.queue[0].begun);
  EXPECT_EQ(input.snapshot.queue[0].done, Tokens(4));
  EXPECT_EQ(input.snapshot.queue[0].tokens, Tokens(12));
  EXPECT_FALSE(input.snapshot.queue[1].begun);
  EXPECT_EQ(input.snapshot.queue[1].done, Tokens(0));
  EXPECT_EQ(last_chunk.progress.planned, last_chunk.goal.prompt) << "nothing of it is left to ask";
}

TEST_F(AdmissionTest, OnlyWhoHasAUserWaitingDecodes) {
  Session& session = attach();
  Request& decodes = decoding(session, 8);
  running(session, 8);  // without a token yet
  decoding(session, 8).verdict = Verdict::kPaused;
  EXPECT_THAT(asked(session).decoding, ElementsAre(decodes.key));
}

TEST_F(AdmissionTest, OneThatDecodesHasATokenToCome) {
  Session& session = attach();
  Request& last = decoding(session, 8, 1);
  last.times.first_token = TimePoint(seconds(1));
  pass(seconds(3));
  const AdmissionInput input = asked(session);
  EXPECT_EQ(input.snapshot.decoding[0].n_future, 1) << "though its answer is as long as it may be";
  EXPECT_EQ(input.snapshot.decoding[0].n_past, 1);
  EXPECT_EQ(input.snapshot.decoding[0].t_past, planner::Seconds(2));
  EXPECT_EQ(input.snapshot.decoding[0].prompt, Tokens(8));
}

TEST_F(AdmissionTest, ThoseLateAlreadyQueueLastWhereTheyCannotBeServedInTime) {
  Session& session = attach();
  Request& late = submit(session, 8, 8);
  pass(late.goal.slo.ttft + milliseconds(1));
  Request& early = submit(session, 8, 8);
  use("none", "unified", "goodput");
  EXPECT_THAT(asked(session).queue, ElementsAre(early.key, late.key));
  use("none", "unified", "ttft");
  EXPECT_THAT(asked(session).queue, ElementsAre(late.key, early.key));
  use("none", "fcfs", "goodput");
  EXPECT_THAT(asked(session).queue, ElementsAre(late.key, early.key)) << "it serves by arrival";
}

TEST_F(AdmissionTest, WhoFindsNoRoomIsHeldBackUntilThereIsSome) {
  use("whole_request", "lvf");
  Session& session = attach();
  decoding(session, 4);
  std::vector<Request*> waiting;
  waiting.reserve(6);
  for (int i = 0; i < 6; ++i) waiting.push_back(&submit(session, 16, 8));
  sut.admit(session);
  EXPECT_THAT(held_back(waiting), ElementsAre(false, false, false, false, true, true))
      << "what runs can be rotated out: four times eight slots";
  ground.memory.end(*waiting[0]);
  waiting.erase(waiting.begin());
  sut.admit(session);
  EXPECT_THAT(held_back(waiting), ElementsAre(false, false, false, false, true));
}

TEST_F(AdmissionTest, WithNobodyDecodingThereIsNobodyToDisturb) {
  use("whole_request", "fcfs");
  Session& session = attach();
  Session& other = attach();
  running(other, 64);  // HBM is full
  std::vector<Request*> waiting = {&submit(session, 16, 8), &submit(session, 16, 8)};
  sut.admit(session);
  EXPECT_THAT(held_back(waiting), ElementsAre(false, true)) << "the head at least may try";
}

TEST_F(AdmissionTest, WhereThePolicyCannotDecideMemoryAloneDoes) {
  use("whole_request", "lvf");
  Session& session = attach();
  decoding(session, 4);
  Request& first = submit(session, 8, 8);
  Request& huge = submit(session, 200, 8);
  huge.verdict = Verdict::kHeldBack;
  sut.admit(session);
  EXPECT_EQ(huge.verdict, Verdict::kNone) << "a prompt that it would never admit";
  EXPECT_EQ(first.verdict, Verdict::kNone);
}

TEST_F(AdmissionTest, WhoIsAboutToMissItsFirstTokenIsNotHeldBack) {
  use("whole_request", "unified", "ttft");
  Session& session = attach();
  decoding(session, 4);
  std::vector<Request*> waiting;
  waiting.reserve(6);
  for (int i = 0; i < 6; ++i) waiting.push_back(&submit(session, 16, 8));
  for (Request* r : waiting) r->goal.slo.ttft = seconds(2);
  sut.admit(session);
  EXPECT_THAT(held_back(waiting), ElementsAre(false, false, false, false, true, true));
  waiting[5]->goal.slo.ttft = seconds(3);
  pass(seconds(1));  // half of it: beta_f
  sut.admit(session);
  EXPECT_THAT(held_back(waiting), ElementsAre(false, false, false, false, false, true));
  use("whole_request", "unified", "goodput");
  sut.admit(session);
  EXPECT_THAT(held_back(waiting), ElementsAre(false, false, false, false, true, true))
      << "operators want those served that can be in time";
}

TEST_F(AdmissionTest, AVerdictOfOthersStays) {
  use("whole_request", "fcfs");
  Session& session = attach();
  decoding(session, 60);
  Request& first = submit(session, 16, 8);
  Request& second = submit(session, 16, 8);
  first.verdict = Verdict::kForcedOut;
  sut.admit(session);
  EXPECT_EQ(first.verdict, Verdict::kForcedOut);
  EXPECT_EQ(second.verdict, Verdict::kHeldBack);
}

TEST_F(AdmissionTest, ABoundHoldsForOneStep) {
  Session& session = attach();
  session.iterations.chunk = Tokens(4);
  sut.admit(session);
  EXPECT_FALSE(session.iterations.chunk) << "this policy sets none";
}

TEST_F(AdmissionTest, MemoryIsWhatTheDomainHasToGive) {
  use("none", "fcfs");
  Session& session = attach();
  running(session, 16);
  const auto memory = asked(session).snapshot.memory;
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->total, Blocks(32));
  EXPECT_EQ(memory->free, Blocks(24));
  EXPECT_EQ(memory->block_tokens, Tokens(kBlockTokens));
  use("whole_request", "unified");
  EXPECT_EQ(asked(session).snapshot.memory->free, Blocks(32)) << "what runs can be rotated out";
  use("whole_request", "fcfs");
  EXPECT_EQ(asked(session).snapshot.memory->free, Blocks(24)) << "it rotates nobody out";
}

TEST_F(AdmissionTest, WhereMoreIsClaimedThanThereIsNothingIsFree) {
  use("none", "fcfs");
  Session& session = attach();
  running(session, 56);
  ground.requests.make_claim(submit(session, 40, 8));
  EXPECT_EQ(asked(session).snapshot.memory->free, Blocks(0));
}

TEST_F(AdmissionTest, WhereLayersLeaveMemoryIsNoBound) {
  use("layerkv");
  Session& narrow = attach(kA, 2);
  Session& session = attach(kA, 4);
  EXPECT_FALSE(asked(session).snapshot.memory) << "prompts prefill into DRAM";
  EXPECT_TRUE(asked(narrow).snapshot.memory) << "of too few groups for that";
  session.info.streams_layers = false;
  EXPECT_TRUE(asked(session).snapshot.memory);
  session.streaming = true;
  EXPECT_FALSE(asked(session).snapshot.memory);
}

TEST_F(AdmissionTest, AStepIsGuardedForTheStrictestGoalOfThoseInIt) {
  Session& session = attach();
  session.costs.decode_s = 0.02;
  EXPECT_FALSE(asked(session).snapshot.guard) << "nobody is in it";
  decoding(session, 8).goal.slo.tbt = milliseconds(80);
  submit(session, 8, 8).goal.slo.tbt = milliseconds(50);
  const auto guard = asked(session).snapshot.guard;
  ASSERT_TRUE(guard);
  EXPECT_DOUBLE_EQ(guard->step.count(), 0.02);
  EXPECT_DOUBLE_EQ(guard->tbt_slo.count(), 0.05);
  session.streaming = true;
  EXPECT_FALSE(asked(session).snapshot.guard) << "the plan bounds it";
  session.streaming = false;
  use("none", "fcfs");
  EXPECT_FALSE(asked(session).snapshot.guard);
}

TEST_F(AdmissionTest, OneMoreAddsWhatThoseThatDecodeDoOnTheMeanAtMost) {
  Session& session = attach();
  session.costs.decode_s = 0.02;
  decoding(session, 16);
  decoding(session, 8);
  session.costs.token_s = 0.0005;
  EXPECT_DOUBLE_EQ(asked(session).snapshot.guard->per_request.count(), 0.0005 * 12);
  session.costs.token_s = 0.1;
  EXPECT_DOUBLE_EQ(asked(session).snapshot.guard->per_request.count(), 0.01) << "a slope of noise";
}

TEST_F(AdmissionTest, CostsAreThoseThatWereMeasured) {
  Session& session = attach(kA, 4);
  session.costs.prefill_token_s = 0.001;
  const CopyFinished copied{Ticket(1), true, Bytes(3000), seconds(1)};
  ground.knowledge.measure_link({kFirst}, Tier::kHbm, copied);
  ground.knowledge.measure_link({kFirst}, Tier::kDram, copied);
  const planner::PrefillCosts costs = asked(session).snapshot.costs;
  EXPECT_EQ(costs.layers, 4);
  EXPECT_DOUBLE_EQ(costs.params, 0.0005);
  EXPECT_DOUBLE_EQ(costs.beta, 16) << "half of a token's 32 bytes in a group";
  EXPECT_THAT(asked(session).queue, IsEmpty());
}

class TwoDeviceAdmission : public AdmissionTest {
 protected:
  TwoDeviceAdmission() : AdmissionTest(small_config(4, 8, 2)) { use("none", "fcfs"); }
};

TEST_F(TwoDeviceAdmission, AGroupHasAsMuchOnEachAsTheScarcestHas) {
  running(attach(), 40);  // leaves 12 slots of the first device
  Session& group = attach(kA, 2, true, Devices(std::vector{kFirst, kSecond}), 2);
  const auto memory = asked(group).snapshot.memory;
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->total, Blocks(64));
  EXPECT_EQ(memory->free, Blocks(24)) << "six for each of its four groups";
}

}  // namespace
}  // namespace kvd::core
