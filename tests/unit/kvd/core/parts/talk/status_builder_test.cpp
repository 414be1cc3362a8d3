// What others may see of the Controller.
#include "kvd/core/talk/status_builder.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/all_parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StatusBuilderTest : public AllPartsTest {
 protected:
  ControllerStatus build() {
    return StatusBuilder(ground, regions, plans, admission, rotation).build();
  }
};

TEST_F(StatusBuilderTest, OfNobodyIsEmpty) {
  const ControllerStatus status = build();
  EXPECT_THAT(status.engines, IsEmpty());
  EXPECT_THAT(status.requests, IsEmpty());
  EXPECT_THAT(status.rotation_inputs, IsEmpty());
  EXPECT_EQ(status.slabs[0].size(), 4u);
  EXPECT_EQ(status.slabs[1].size(), 8u);
}

TEST_F(StatusBuilderTest, SumsTheMemoryOfEachEngine) {
  Session& first = attach();
  Session& second = attach();
  running(first, 8);
  running(first, 4);
  submit(second, 4, 4);
  const ControllerStatus status = build();
  ASSERT_THAT(status.engines, SizeIs(2));
  EXPECT_EQ(status.engines[0].hbm, kSlot * 6);
  EXPECT_EQ(status.held[0], kSlot * 6);
  EXPECT_EQ(status.held[1], Bytes(0));
  EXPECT_EQ(status.engines[0].requests, 2u);
  EXPECT_EQ(status.engines[0].level.number, 3u);
  EXPECT_EQ(status.engines[1].hbm, Bytes(0));
  EXPECT_EQ(status.engines[1].requests, 1u);
  ASSERT_THAT(status.requests, SizeIs(3));
  EXPECT_EQ(status.requests[0].state, RequestState::kRunning);
  EXPECT_EQ(status.requests[0].hbm, kSlot * 4);
  EXPECT_EQ(status.requests[2].state, RequestState::kWaiting);
}

TEST_F(StatusBuilderTest, TellsAgesFromTheClock) {
  Session& session = attach();
  running(session, 4);
  session.life.last_beat = ground.context.now;
  pass(seconds(3));
  session.life.last_step = ground.context.now;
  pass(seconds(2));
  const ControllerStatus status = build();
  EXPECT_DOUBLE_EQ(status.requests.at(0).age_s, 5);
  EXPECT_DOUBLE_EQ(status.engines.at(0).service.idle_s, 2) << "the later of step and beat counts";
}

TEST_F(StatusBuilderTest, TellsHowLateEachIsByTheClock) {
  Session& session = attach();
  session.totals.services = ClassServices("chat");
  Request& waits = submit(session, 4, 4);
  waits.goal.slo.ttft = seconds(5);
  ground.requests.at(waits.key).verdict = Verdict::kHeldBack;  // no policy is asked about it
  pass(seconds(12));
  const ControllerStatus status = build();
  const RequestStatus& seen = status.requests.at(0);
  EXPECT_GT(seen.vlt_s, 0) << "though it was in no decision";
  EXPECT_FALSE(seen.goals.next);
  EXPECT_EQ(seen.goals.ttft_s, 5);
  EXPECT_EQ(seen.goals.late_s, 7.0);
  EXPECT_EQ(seen.waits_for, WaitReason::kHeldBack);
  const ClassService& service = status.engines.at(0).service.classes.at(0);
  EXPECT_EQ(service.name, "chat");
  EXPECT_DOUBLE_EQ(service.oldest.wait_s, 12);
  EXPECT_DOUBLE_EQ(service.oldest.goals, 2.4);
}

TEST_F(StatusBuilderTest, ShowsThePlanOfAnEngineThatStreams) {
  Session& session = attach();
  Request& planned = running(session, 4);
  Request& paused = running(session, 4);
  running(session, 4);
  session.streaming = true;
  session.plan.batch = {planned.key};
  session.plan.adopted = "another";
  session.plan.steps_left = -2;
  planned.layers.away = {false, true};
  paused.verdict = Verdict::kPaused;
  const ControllerStatus status = build();
  ASSERT_THAT(status.plans, SizeIs(1));
  const PlanStatus& plan = status.plans[0];
  EXPECT_TRUE(plan.fallback) << "not the policy that was selected";
  EXPECT_EQ(plan.steps_left, 0);
  ASSERT_THAT(plan.requests, SizeIs(2));
  EXPECT_THAT(plan.requests[0].in_dram, ElementsAre(2u)) << "layer groups count from one";
  EXPECT_TRUE(plan.requests[1].paused);
}

TEST_F(StatusBuilderTest, GivesWhatThePoliciesWouldBeAsked) {
  Session& session = attach();
  session.info.domain_name = "chat";
  attach(kB).info.domain_name = "batch";
  const RequestKey runs = running(session, 4).key;
  const RequestKey waits = submit(session, 4, 4).key;
  const ControllerStatus status = build();
  ASSERT_THAT(status.rotation_inputs, SizeIs(2)) << "one for each domain";
  EXPECT_EQ(status.rotation_inputs[0].domain, "chat");
  EXPECT_THAT(status.rotation_inputs[0].requests, ElementsAre(runs, waits));
  EXPECT_THAT(status.rotation_inputs[1].requests, IsEmpty());
  ASSERT_THAT(status.admission_inputs, SizeIs(2)) << "one for each engine";
  EXPECT_THAT(status.admission_inputs[0].queue, ElementsAre(waits));
  ASSERT_THAT(status.placement_inputs, SizeIs(1)) << "one for each engine that runs something";
  EXPECT_THAT(status.placement_inputs[0].requests, ElementsAre(runs));
}

TEST_F(StatusBuilderTest, LeavesThoseThatDieOutOfDecisions) {
  Session& session = attach();
  session.life.dying = true;
  const ControllerStatus status = build();
  ASSERT_THAT(status.engines, SizeIs(1));
  EXPECT_TRUE(status.engines[0].dying);
  EXPECT_THAT(status.admission_inputs, IsEmpty());
  session.life.dying = false;
}

TEST_F(StatusBuilderTest, ChangesNothing) {
  Session& session = attach();
  running(session, 8);
  submit(session, 4, 4);
  const auto free_before = free_hbm();
  (void)build();
  (void)build();
  EXPECT_EQ(free_hbm(), free_before);
  EXPECT_THAT(emitted<Reply>(), IsEmpty());
  EXPECT_THAT(emitted<CopySlots>(), IsEmpty());
}

}  // namespace
}  // namespace kvd::core
