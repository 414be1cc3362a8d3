// Tests who makes way where nobody could grow any more, and prompts whose layers make way for
// themselves.
#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/all_parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

/// HBM is four slabs of eight slots.
class MakeWayTest : public AllPartsTest {
 protected:
  explicit MakeWayTest(Config config = small_config()) : AllPartsTest(std::move(config)) {}

  Request& claiming(Session& session, std::int64_t prompt) {
    Request& request = submit(session, prompt, 8);
    ground.requests.make_claim(request);
    return request;
  }
  Request& paused(Session& session, std::int64_t tokens) {
    Request& request = running(session, tokens);
    request.verdict = Verdict::kPaused;
    return request;
  }

  Claims& sut = claims;
};

TEST_F(MakeWayTest, OfThosePausedTheLatestArrivalLeaves) {
  Session& session = attach();
  Request& first = paused(session, 4);
  pass(seconds(1));
  Request& second = paused(session, 4);
  running(session, 56);
  ASSERT_EQ(free_hbm(), Bytes(0));
  sut.grow_running(session);
  EXPECT_FALSE(first.leaving);
  EXPECT_TRUE(second.leaving);
}

TEST_F(MakeWayTest, OneThatIsCurbedLeavesInPlaceOfGrowing) {
  Session& session = attach();
  Request& curbed = running(session, 4);
  Request& other = running(session, 4);
  curbed.order.curbed = true;
  sut.grow_running(session);
  EXPECT_TRUE(curbed.starved);
  EXPECT_TRUE(curbed.leaving);
  EXPECT_EQ(curbed.table.blocks(), 1u);
  EXPECT_EQ(other.table.blocks(), 2u);
  EXPECT_FALSE(other.leaving);
}

TEST_F(MakeWayTest, OneThatIsShelteredDoesNotMakeWay) {
  Session& session = attach();
  Request& other = running(session, 28);
  pass(seconds(1));
  Request& latest = running(session, 36);
  ASSERT_EQ(free_hbm(), Bytes(0));
  latest.order.sheltered = true;
  sut.grow_running(session);
  EXPECT_FALSE(latest.leaving);
  EXPECT_TRUE(other.leaving);
}

TEST_F(MakeWayTest, APausedOneThatIsPromisedOrSilentIsNotAskedAgain) {
  Session& session = attach();
  Session& silent = attach();
  Request& first = paused(session, 4);
  pass(seconds(1));
  Request& second = paused(session, 4);
  paused(silent, 4);
  Request& prompt = paused(session, 4);
  prompt.phase = Phase::kPrompt;
  running(session, 48);
  ASSERT_EQ(free_hbm(), Bytes(0));
  silent.life.responsive = false;
  second.order.claim = 0;
  sut.grow_running(session);
  EXPECT_TRUE(second.leaving) << "a prompt cannot leave, and a silent engine's does not";
  EXPECT_FALSE(first.leaving);
  EXPECT_FALSE(prompt.leaving);
}

TEST_F(MakeWayTest, WhoeverIsOnItsWayOutIsWaitedFor) {
  Session& session = attach();
  Request& first = paused(session, 4);
  Request& second = paused(session, 4);
  running(session, 56);
  second.promised = Promise::kForBytes;
  sut.grow_running(session);
  EXPECT_FALSE(first.leaving);
}

TEST_F(MakeWayTest, OneThatCameInAndStarvesAtOnceLeavesWhereNobodyElseCan) {
  Session& session = attach();
  Request& first = running(session, 32);
  first.phase = Phase::kPrompt;
  first.goal.prompt = Tokens(40);
  Request& fresh = running(session, 32);
  fresh.fresh = true;
  ASSERT_EQ(free_hbm(), Bytes(0));
  sut.grow_running(session);
  EXPECT_TRUE(fresh.leaving);
}

TEST_F(MakeWayTest, OneAloneDoesNotLeaveForItself) {
  Session& session = attach();
  Request& only = running(session, 64);
  session.plan.steps_left = 7;
  sut.grow_running(session);
  EXPECT_TRUE(only.starved);
  EXPECT_FALSE(only.leaving);
  EXPECT_EQ(session.plan.steps_left, 0) << "what the plan foresaw did not come";
}

class TightDramMakeWay : public MakeWayTest {
 protected:
  TightDramMakeWay() : MakeWayTest(small_config(4, 1)) {}
};

TEST_F(TightDramMakeWay, APausedOneForWhichDramHasNoRoomStays) {
  Session& session = attach();
  Request& small = paused(session, 16);
  pass(seconds(1));
  Request& large = paused(session, 20);
  running(session, 28);
  ASSERT_EQ(free_hbm(), Bytes(0));
  sut.grow_running(session);
  EXPECT_TRUE(small.leaving) << "eight slots";
  EXPECT_FALSE(large.leaving);
}

class StreamingMakeWay : public MakeWayTest {
 protected:
  StreamingMakeWay() : MakeWayTest(config()) {}
  static Config config() {
    Config made = small_config(8, 16);
    made.tuning.placement.policy = "orbitflow";
    return made;
  }
};

TEST_F(StreamingMakeWay, APromptThatNobodyCanLeaveForMakesWayForItself) {
  Session& session = attach(kA, 4);
  Request& prompt = running(session, 64);
  prompt.phase = Phase::kPrompt;
  prompt.goal.prompt = Tokens(80);
  ASSERT_EQ(free_hbm(), Bytes(0));
  sut.grow_running(session);
  EXPECT_TRUE(prompt.starved);
  EXPECT_THAT(prompt.layers.away, ElementsAre(true, true, true, true));
}

TEST_F(StreamingMakeWay, APromptWhoseLayersLeaveComesInChunkByChunk) {
  Session& session = attach(kA, 4);
  Request& prompt = claiming(session, 60);
  prompt.layers.away.assign(4, true);
  sut.serve(kA);
  EXPECT_TRUE(prompt.prefills());
  EXPECT_EQ(prompt.table.blocks(), 4u) << "a quarter of what is free";
  Request& large = running(session, 44);
  ASSERT_LT(free_hbm(), kSlot * 8);
  prompt.progress.planned = prompt.progress.tokens = Tokens(16);
  ground.memory.seal_full_blocks(prompt);
  sut.grow_running(session);
  EXPECT_EQ(prompt.table.blocks(), 5u) << "one at least";
  prompt.progress.planned = Tokens(20);
  sut.grow_running(session);
  EXPECT_TRUE(prompt.starved);
  EXPECT_TRUE(session.ahead.crowded) << "blocks that are full make way at the next step";
  ground.memory.end(large);
}

class TwoDeviceMakeWay : public MakeWayTest {
 protected:
  TwoDeviceMakeWay() : MakeWayTest(small_config(4, 8, 2)) {}
};

TEST_F(TwoDeviceMakeWay, SomebodyLeavesTheDeviceThatIsShort) {
  Session& here = attach();
  Session& there = attach(kA, 2, true, Devices(kSecond));
  Session& group = attach(kA, 1, true, Devices(std::vector{kFirst, kSecond}), 2);
  Request& near = running(here, 8);
  Request& far = running(there, 56);
  Request& hungry = running(group, 16);
  pass(seconds(1));
  far.times.arrived = ground.context.now;
  near.times.arrived = ground.context.now;
  ASSERT_EQ(free_hbm({kA, kSecond}), Bytes(0));
  sut.grow_running(group);
  EXPECT_TRUE(hungry.starved);
  EXPECT_TRUE(far.promised);
  EXPECT_FALSE(near.promised) << "it has nothing there";
}

TEST_F(TwoDeviceMakeWay, AClaimIsOvertakenWhereItDoesNotWait) {
  Session& here = attach();
  Session& there = attach(kA, 2, true, Devices(kSecond));
  Session& group = attach(kA, 1, true, Devices(std::vector{kFirst, kSecond}), 2);
  running(there, 56);
  Request& large = claiming(group, 40);
  Request& near = claiming(here, 4);
  Request& far = claiming(there, 4);
  sut.serve(kA);
  EXPECT_TRUE(large.waits());
  EXPECT_TRUE(near.prefills()) << "the first device has room for both";
  EXPECT_TRUE(far.waits());
}

}  // namespace
}  // namespace kvd::core
