// Why requests whose blocks kvd places make no token.
#include "kvd/core/talk/waits.hpp"

#include <gtest/gtest.h>

#include "tests/unit/kvd/core/parts/all_parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::seconds;

class WaitsTest : public AllPartsTest {
 protected:
  /// `free_slots` of HBM are free for the requests that the policy is asked about.
  WaitReason why(const Request& request, const std::vector<const Request*>& asked = {},
                 std::int64_t free_slots = 0, Bytes dram = kGiB) {
    RotationInput input;
    input.snapshot.b_hbm = kSlot * free_slots;
    input.snapshot.dram = planner::DramUse{kGiB, dram};
    for (const Request* one : asked) {
      planner::RotationRequest entry;
      entry.bytes = kSlot * 4;
      entry.t_arr = one->times.arrived;
      input.snapshot.requests.push_back(entry);
      input.requests.push_back(one->key);
    }
    return Waits(ground, {input}).of(request);
  }

  Session& session = attach();
};

TEST_F(WaitsTest, OneThatRunsDoesNot) {
  Request& request = running(session, 4);
  request.progress.last_iteration = session.iterations.granted = 1;
  EXPECT_EQ(why(request), WaitReason::kNone);
  request.starved = true;
  EXPECT_EQ(why(request), WaitReason::kNone) << "its iteration goes on";
  session.iterations.finished = 1;
  EXPECT_EQ(why(request), WaitReason::kMemory);
  request.leaving = true;
  EXPECT_EQ(why(request), WaitReason::kYields);
}

TEST_F(WaitsTest, InLineByRoomAndArrival) {
  Request& first = submit(session, 4, 4);
  pass(seconds(1));
  Request& second = submit(session, 4, 4);
  EXPECT_EQ(why(first, {&second, &first}, 4), WaitReason::kStep);
  EXPECT_EQ(why(second, {&second, &first}, 4), WaitReason::kMemory) << "the first takes it";
  EXPECT_EQ(why(second, {&second, &first}, 8), WaitReason::kStep);
  EXPECT_EQ(why(first, {&first}, 0, kSlot), WaitReason::kDram);
  (void)ground.line.in_line(kA);
  EXPECT_EQ(why(first), WaitReason::kMemory) << "nobody stands before it";
  EXPECT_EQ(why(second), WaitReason::kBehind);
}

TEST_F(WaitsTest, WhoseGoalHasPassedGoesLast) {
  Request& request = submit(session, 4, 4);
  request.goal.slo.ttft = seconds(1);
  pass(seconds(2));
  ASSERT_TRUE(ground.line.serves_last(request));
  EXPECT_EQ(why(request, {&request}), WaitReason::kLate);
  EXPECT_EQ(why(request, {&request}, 4), WaitReason::kStep) << "there is room for all";
}

TEST_F(WaitsTest, WhatPoliciesAndCommandsHold) {
  Request& request = submit(session, 4, 4);
  request.verdict = Verdict::kHeldBack;
  EXPECT_EQ(why(request), WaitReason::kHeldBack);
  request.verdict = Verdict::kPaused;
  EXPECT_EQ(why(request), WaitReason::kPaused);
  request.verdict = Verdict::kForcedOut;
  EXPECT_EQ(why(request), WaitReason::kForced);
  request.verdict = Verdict::kHopeless;
  EXPECT_EQ(why(request), WaitReason::kEnds);
  request.verdict = Verdict::kNone;
  request.content.awaits_disk = true;
  EXPECT_EQ(why(request), WaitReason::kDisk);
  session.life.draining = Draining{};
  EXPECT_EQ(why(request), WaitReason::kDrained);
  session.life.responsive = false;
  EXPECT_EQ(why(request), WaitReason::kSilent);
}

TEST_F(WaitsTest, AClaimWaitsForMemoryForOthersOrForItsEngine) {
  Request& victim = running(session, 4);
  Request& request = submit(session, 4, 4);
  ground.requests.make_claim(request);
  EXPECT_EQ(why(request), WaitReason::kMemory);
  victim.promised = Promise::kForBytes;
  EXPECT_EQ(why(request), WaitReason::kPromised);
  request.order.awaits_mapping = true;
  EXPECT_EQ(why(request), WaitReason::kMapping);
  ground.requests.drop_claim(request);
}

TEST_F(WaitsTest, EachReasonHasAWordAndASentence) {
  for (const WaitText& text : kWaitTexts) EXPECT_FALSE(text.sentence.empty()) << text.word;
  EXPECT_EQ(name(WaitReason::kNone), "");
  EXPECT_EQ(name(WaitReason::kHeldBack), "held_back");
  EXPECT_EQ(wait_sentence("behind"), "others go first");
  EXPECT_EQ(wait_sentence("of another kvd"), "of another kvd");
}

}  // namespace
}  // namespace kvd::core
