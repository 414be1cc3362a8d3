// Tests who may prefill and who runs: what the policies are asked, and what becomes of their
// answers.
#include "kvd/core/deciding/rotation.hpp"

#include <gmock/gmock.h>

#include "kvd/core/deciding/admission.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RotationTest : public PartsTest {
 protected:
  explicit RotationTest(Config config = small_config()) : PartsTest(std::move(config)) {}

  std::vector<Request*> asked(Share share) {
    std::vector<Request*> index;
    (void)sut.rotation_snapshot(share, index);
    return index;
  }

  DramCopies copies{ground};
  Needs needs{ground};
  Supply supply{ground, needs};
  Promises promises{ground, supply};
  Admission admission{ground, needs, supply};
  Rotation sut{ground, copies, needs, supply, promises};
};

TEST_F(RotationTest, AsksAboutWhoRunsAndWhoWantsIn) {
  Session& session = attach();
  Request& runs = running(session, 8);
  Request& waits = submit(session, 8, 8);
  Request& held_back = submit(session, 8, 8);
  Request& leaves = running(session, 8);
  held_back.verdict = Verdict::kHeldBack;
  leaves.leaving = true;
  EXPECT_THAT(asked(kShareA), ElementsAre(&runs, &waits));
}

TEST_F(RotationTest, ASilentEnginesRequestsAreNobodysBusiness) {
  Session& session = attach();
  Session& silent = attach();
  Request& runs = running(session, 8);
  running(silent, 8);
  submit(silent, 8, 8);
  silent.life.responsive = false;
  EXPECT_THAT(asked(kShareA), ElementsAre(&runs));
}

TEST_F(RotationTest, TheSnapshotCountsWhatIsFreeAndWhatWillGrow) {
  Session& session = attach();
  running(session, 8);
  std::vector<Request*> index;
  const auto snapshot = sut.rotation_snapshot(kShareA, index);
  EXPECT_EQ(snapshot.b_hbm, kSlab * 4 - kSlot * 4);
  EXPECT_EQ(snapshot.growth, kSlot * 2) << "a block in two groups for its next token";
  ASSERT_TRUE(snapshot.dram);
  EXPECT_EQ(snapshot.dram->free, kSlab * 8);
}

TEST_F(RotationTest, ThePolicySeesTheLongestGapOfWhoNamesOne) {
  Session& session = attach();
  for (Request* r : {&running(session, 8), &running(session, 8)}) {
    r->goal.slo = {seconds(5), std::chrono::milliseconds(100), {}};
    r->times.has_token = true;
    Knowledge::pace(*r, Tokens(41), ground.context.now, ground.context.now);
  }
  session.inside.back()->goal.slo.gap = seconds(2);
  std::vector<Request*> index;
  const auto snapshot = sut.rotation_snapshot(kShareA, index);
  ASSERT_THAT(snapshot.requests, SizeIs(2));
  EXPECT_FALSE(snapshot.requests[0].gap) << "its client shows a token each interval";
  EXPECT_EQ(snapshot.requests[0].deposit, 40);
  EXPECT_EQ(snapshot.requests[1].gap, planner::Seconds(2));
}

TEST_F(RotationTest, WhoFitsGetsAClaim) {
  Session& session = attach();
  Request& request = submit(session, 8, 8);
  sut.decide(session);
  EXPECT_NE(request.order.claim, 0u);
}

TEST_F(RotationTest, AnotherEnginesRequestIsGrantedAtItsOwnStep) {
  Session& own = attach();
  Session& other = attach();
  Request& request = submit(other, 8, 8);
  sut.decide(own);
  EXPECT_EQ(request.order.claim, 0u);
  sut.decide(other);
  EXPECT_NE(request.order.claim, 0u);
}

TEST_F(RotationTest, WhoCouldNeverGrowToItsEndDoesNotComeIn) {
  Session& session = attach();
  running(session, 8, 100);
  Request& request = submit(session, 60, 60);
  sut.decide(session);
  EXPECT_EQ(request.order.claim, 0u) << "HBM and DRAM together hold one of them";
}

TEST_F(RotationTest, EachFurtherClassMayLeaveASlabAlmostEmpty) {
  Session& session = attach();
  running(session, 8, 56);                                // a third of HBM and DRAM together
  Request& other = submit(attach_other_class(), 16, 16);  // the second; the last is for its way out
  EXPECT_THAT(asked(kShareA), SizeIs(1)) << "slabs of two classes hold less";
  ground.memory.end(other);
  submit(attach(), 32, 32);
  EXPECT_THAT(asked(kShareA), SizeIs(2));
}

TEST_F(RotationTest, WithNobodyInsideTheHeadOfTheQueueComesIn) {
  Tuning wanted = ground.context.tuning;
  wanted.rotation.policy = "fcfs";
  ground.context.retune(wanted);
  Session& session = attach();
  Request& head = submit(session, 8, 8);
  head.verdict = Verdict::kHeldBack;
  sut.decide(session);
  EXPECT_NE(head.order.claim, 0u) << "there is nobody to spare room for";
}

// It holds DRAM and its promise. A request that came in beside it could grow until neither fits.
TEST_F(RotationTest, TheHeadWaitsForOneThatIsPausedUnlessItsEngineIsSilent) {
  Session& session = attach();
  Session& other = attach();
  submit(other, 8, 8).verdict = Verdict::kPaused;
  Request& head = submit(session, 8, 8);
  head.verdict = Verdict::kHeldBack;
  sut.decide(session);
  EXPECT_EQ(head.order.claim, 0u);
  other.life.responsive = false;
  sut.decide(session);
  EXPECT_NE(head.order.claim, 0u) << "it waits for nobody that may never step again";
}

TEST_F(RotationTest, AdmissionIsAskedAboutPromptsAndWhoDecodes) {
  Session& session = attach();
  Request& runs = running(session, 8);
  runs.times.has_token = true;
  Request& waits = submit(session, 8, 8);
  std::vector<Request*> queue;
  const AdmissionInput input = admission.admission_input(session, queue);
  EXPECT_THAT(input.queue, ElementsAre(waits.key));
  EXPECT_THAT(input.decoding, ElementsAre(runs.key));
}

TEST_F(RotationTest, WithNobodyDecodingTheHeadIsAdmitted) {
  Session& session = attach();
  Request& head = submit(session, 8, 8);
  admission.admit(session);
  EXPECT_EQ(head.verdict, Verdict::kNone);
}

TEST_F(RotationTest, AVerdictOfOthersIsNotOverwritten) {
  Session& session = attach();
  Request& request = submit(session, 8, 8);
  request.verdict = Verdict::kHopeless;
  admission.admit(session);
  EXPECT_EQ(request.verdict, Verdict::kHopeless);
}

TEST_F(RotationTest, ADomainWithoutRequestsHasNothingToDecide) {
  Session& session = attach();
  sut.decide(session);
  EXPECT_THAT(asked(kShareA), IsEmpty());
  EXPECT_THAT(emitted<Note>(), SizeIs(0));
}

class TwoDeviceRotationTest : public RotationTest {
 protected:
  TwoDeviceRotationTest() : RotationTest(small_config(4, 8, 2)) {}

  static constexpr Share kThere{kA, kSecond};
  Devices both{std::vector{kFirst, kSecond}};
};

TEST_F(TwoDeviceRotationTest, AsksAboutTheEnginesOfADevice) {
  Session& here = attach();
  Session& there = attach(kA, 2, true, Devices(kSecond));
  Session& group = attach(kA, 1, true, both, 2);
  Request& near = running(here, 8);
  Request& far = submit(there, 8, 8);
  Request& shared = running(group, 4);
  EXPECT_THAT(asked(kShareA), ElementsAre(&near, &shared));
  EXPECT_THAT(asked(kThere), ElementsAre(&far, &shared));
}

TEST_F(TwoDeviceRotationTest, TheSnapshotIsOfItsDevice) {
  running(attach(), 8);
  Session& group = attach(kA, 1, true, both, 2);
  running(group, 4);
  std::vector<Request*> index;
  const auto snapshot = sut.rotation_snapshot(kThere, index);
  EXPECT_EQ(snapshot.b_hbm, kSlab * 4 - kSlot);
  EXPECT_EQ(snapshot.growth, kSlot) << "of the rank on it";
  ASSERT_EQ(snapshot.requests.size(), 1u);
  EXPECT_EQ(snapshot.requests[0].bytes, kSlot);
}

TEST_F(TwoDeviceRotationTest, AGroupComesInWhereEachOfItsDevicesHasRoom) {
  ground.context.tuning.rotation.policy = "fcfs";
  ground.context.retune(Tuning(ground.context.tuning));
  Session& here = attach();
  Request& large = running(here, 56);
  Session& group = attach(kA, 2, true, both, 2);
  Request& request = submit(group, 32, 4);
  sut.decide(group);
  EXPECT_EQ(request.order.claim, 0u) << "the first is full";
  ground.memory.end(large);
  sut.decide(group);
  EXPECT_NE(request.order.claim, 0u);
}

TEST_F(TwoDeviceRotationTest, NoMoreComeInThanDramCouldTakeOfAllDevices) {
  // 8 slabs of DRAM: 64 slots. Each may grow to 32 slots more than HBM has.
  Session& here = attach();
  Session& there = attach(kA, 2, true, Devices(kSecond));
  for (int i = 0; i < 2; ++i) {
    submit(here, 8, 56);
    submit(there, 8, 56);
  }
  EXPECT_THAT(asked(kShareA), SizeIs(2)) << "32 beyond HBM, and a whole one of 32 beside";
  for (Request* r : asked(kThere)) ground.requests.make_claim(*r);
  EXPECT_THAT(asked(kShareA), SizeIs(1)) << "DRAM has to take what both promise";
}

}  // namespace
}  // namespace kvd::core
