// Whole requests that leave and come back.
#include "kvd/core/moves/swaps.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class SwapsTest : public PartsTest {
 protected:
  explicit SwapsTest(Config config = small_config()) : PartsTest(std::move(config)) {}

  void leave(Session& session, Request& request) {
    request.leaving = true;
    sut.start_leaving(session);
  }
  bool end(Ticket ticket, bool ok = true) {
    CopyFinished finished;
    finished.ticket = ticket;
    finished.ok = ok;
    finished.bytes = kSlot;
    finished.busy = Nanoseconds(1000);
    return sut.on_copy(finished);
  }

  Compactor compactor{ground};
  DramCopies copies{ground};
  Streams streams{ground};
  Swaps sut{ground, copies, streams, compactor};
};

TEST_F(SwapsTest, LeavesHbmWhenItsBytesAreInDram) {
  Session& session = attach();
  Request& request = running(session, 6);
  leave(session, request);
  EXPECT_EQ(request.place, Location::kGoing);
  ASSERT_THAT(emitted<CopySlots>(), SizeIs(1));
  EXPECT_THAT(emitted<CopySlots>()[0].pairs, SizeIs(4)) << "the open block, too";
  EXPECT_EQ(request.table.in(Tier::kHbm), 4);
  EXPECT_TRUE(end(request.moves.rotation));
  EXPECT_EQ(request.place, Location::kParked);
  EXPECT_EQ(request.table.in(Tier::kHbm), 0);
  EXPECT_EQ(free_hbm(), kSlab * 4);
  EXPECT_EQ(request.order.rotations, 1u);
  EXPECT_EQ(ground.context.counters.rotations_out, 1u);
}

TEST_F(SwapsTest, AnIterationThatRunsIsWaitedFor) {
  Session& session = attach();
  Request& request = running(session, 6);
  request.progress.last_iteration = 5;
  session.iterations.finished = 4;
  leave(session, request);
  EXPECT_TRUE(request.runs()) << "its block is being written";
  EXPECT_THAT(emitted<CopySlots>(), IsEmpty());
  session.iterations.finished = 5;
  sut.start_leaving(session);
  EXPECT_EQ(request.place, Location::kGoing);
  EXPECT_TRUE(end(request.moves.rotation));
}

TEST_F(SwapsTest, BlocksWithoutATokenAreFreedAndNotMoved) {
  Session& session = attach();
  Request& request = running(session, 4);
  ASSERT_EQ(ground.memory.grow(request, Tokens(16)), ErrorCode::kOk);
  leave(session, request);
  EXPECT_THAT(emitted<CopySlots>()[0].pairs, SizeIs(2));
  EXPECT_EQ(ground.memory.hbm_bytes(request), kSlot * 2);
  EXPECT_TRUE(end(request.moves.rotation));
}

TEST_F(SwapsTest, WhatWasCopiedAheadLeavesAtOnce) {
  Session& session = attach();
  Request& request = running(session, 8);
  copies.make_ahead(session);
  EXPECT_TRUE(end(request.moves.sync));
  EXPECT_FALSE(request.moves.sync);
  leave(session, request);
  EXPECT_EQ(request.place, Location::kParked) << "nothing is left to copy";
  EXPECT_EQ(free_hbm(), kSlab * 4);
}

TEST_F(SwapsTest, ComesBackWithRoomForOneTokenMore) {
  Session& session = attach();
  Request& request = parked(sut, session, 8);
  EXPECT_EQ(sut.swap_in(request), ErrorCode::kOk);
  EXPECT_EQ(request.place, Location::kComing);
  EXPECT_EQ(request.table.blocks(), 3u);
  EXPECT_TRUE(request.moves.in) << "the engine waits for its bytes";
  request.times.due = ground.context.now + std::chrono::seconds(1);
  pass(std::chrono::seconds(5));
  EXPECT_TRUE(end(request.moves.rotation));
  EXPECT_EQ(ground.knowledge.mean_lateness_s(), 1) << "a quarter of 4: 1 s was not late yet";
  EXPECT_TRUE(request.decodes());
  EXPECT_TRUE(request.fresh) << "it makes a token before it may leave again";
  EXPECT_EQ(request.sealed, 2u);
  EXPECT_EQ(ground.context.counters.rotations_in, 1u);
}

TEST_F(SwapsTest, CopiesOfFullBlocksStayGoodUnlessOperatorsDoNotWantThem) {
  Session& session = attach();
  Request& eager = parked(sut, session, 6);
  ASSERT_EQ(sut.swap_in(eager), ErrorCode::kOk);
  EXPECT_TRUE(end(eager.moves.rotation));
  EXPECT_EQ(eager.table.in(Tier::kDram), 2) << "its full block in two groups";
  ground.context.tuning.rotation.eager = false;
  Request& plain = parked(sut, session, 6);
  ASSERT_EQ(sut.swap_in(plain), ErrorCode::kOk);
  EXPECT_TRUE(end(plain.moves.rotation));
  EXPECT_EQ(plain.table.in(Tier::kDram), 0);
}

TEST_F(SwapsTest, ACopyOutThatFailedLeavesItRunning) {
  Session& session = attach();
  Request& request = running(session, 8);
  leave(session, request);
  EXPECT_TRUE(end(request.moves.rotation, false));
  EXPECT_TRUE(request.decodes());
  EXPECT_EQ(request.table.in(Tier::kHbm), 4);
  EXPECT_EQ(request.table.in(Tier::kDram), 0);
  EXPECT_EQ(ground.context.counters.copy_failures, 1u);
  EXPECT_THAT(emitted<Note>(), SizeIs(1));
}

TEST_F(SwapsTest, ACopyInThatFailedLeavesItParked) {
  Session& session = attach();
  Request& request = parked(sut, session, 8);
  ASSERT_EQ(sut.swap_in(request), ErrorCode::kOk);
  EXPECT_TRUE(end(request.moves.rotation, false));
  EXPECT_EQ(request.place, Location::kParked);
  EXPECT_FALSE(request.moves.in);
  EXPECT_EQ(request.table.in(Tier::kHbm), 0);
  EXPECT_EQ(request.table.in(Tier::kDram), 4);
  EXPECT_EQ(free_hbm(), kSlab * 4);
}

TEST_F(SwapsTest, NoRoomToComeBackChangesNothing) {
  Session& session = attach();
  Request& request = parked(sut, session, 8);
  running(session, 60);
  EXPECT_EQ(sut.swap_in(request), ErrorCode::kOutOfMemory);
  EXPECT_EQ(request.place, Location::kParked);
  EXPECT_EQ(request.table.in(Tier::kDram), 4);
}

TEST_F(SwapsTest, ACopyThatNobodyWaitsForIsNobodys) { EXPECT_FALSE(end(Ticket(99))); }

TEST_F(SwapsTest, AnEndedCopyOfOneThatIsGoneFreesItsSlots) {
  Session& session = attach();
  Request& request = running(session, 8);
  leave(session, request);
  const Ticket copy = request.moves.rotation;
  ground.memory.end(request);
  EXPECT_TRUE(end(copy));
  EXPECT_EQ(free_hbm(), kSlab * 4);
  EXPECT_EQ(free_dram(), kSlab * 8);
  EXPECT_FALSE(end(copy)) << "a device may report twice";
}

class TightDram : public SwapsTest {
 protected:
  TightDram() : SwapsTest(small_config(4, 1)) {}
};

TEST_F(TightDram, OneForWhichDramHasNoRoomStays) {
  Session& session = attach();
  Request& request = running(session, 20);
  request.verdict = Verdict::kForcedOut;
  leave(session, request);
  EXPECT_TRUE(request.decodes());
  EXPECT_FALSE(request.leaving);
  EXPECT_FALSE(request.forced_out());
  EXPECT_TRUE(request.fresh) << "it is not asked again before its next token";
  EXPECT_EQ(ground.context.counters.rotation_blocked_dram, 1u);
}

}  // namespace
}  // namespace kvd::core
