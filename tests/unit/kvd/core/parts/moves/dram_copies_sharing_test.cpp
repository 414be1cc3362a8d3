// Which copies in DRAM can be given up: none that somebody reads, shares, or needs in order to
// leave.
#include <gmock/gmock.h>

#include "kvd/core/moves/dram_copies.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

/// DRAM has 16 slots.
class SpareCopiesTest : public PartsTest {
 protected:
  SpareCopiesTest() : PartsTest(small_config(8, 2)) {
    ground.context.tuning.rotation.b_xfer = Bytes(1 << 20);
  }

  Request& copied(Session& session, std::int64_t tokens) {
    Request& request = running(session, tokens);
    sut.make_ahead(session);
    end_sync(session, request);
    EXPECT_EQ(request.table.doubled(), std::int64_t{request.table.size()});
    return request;
  }
  void end_sync(Session& session, Request& request) {
    const auto transfer = ground.store.transfers.ended(request.moves.sync);
    ASSERT_TRUE(transfer);
    for (const std::uint32_t i : transfer->places) {
      blocks.settle(request.table, i, Tier::kDram, true);
    }
    ground.store.tiers.copy_ended(std::exchange(request.moves.sync, Ticket()));
    session.ahead.under_way = Bytes(0);
  }
  /// Another request that names the request's first block as well.
  Request& sharing(Session& session, Request& request) {
    Request& other = submit(session, 4, 8);
    blocks.share(other.table, blocks.name(request.table, 0, store::EntryId(1)));
    other.place = Location::kIn;
    other.progress.tokens = other.progress.planned = Tokens(4);
    other.sealed = other.synced = 1;
    ground.requests.requeue(other);
    return other;
  }

  store::Blocks& blocks = ground.store.blocks;
  DramCopies sut{ground};
};

TEST_F(SpareCopiesTest, ACopyThatTwoShareIsNobodysToDrop) {
  Session& session = attach();
  Request& request = copied(session, 16);
  EXPECT_EQ(sut.spare(kA), kSlot * 16) << "free or a copy";
  Request& other = sharing(session, request);
  EXPECT_EQ(sut.spare(kA), kSlot * 14) << "the other may have nothing else soon";
  (void)blocks.truncate(other.table, 0);
  EXPECT_EQ(sut.spare(kA), kSlot * 16) << "it is the last one's again";
}

TEST_F(SpareCopiesTest, WhatIsDroppedIsNothingThatIsShared) {
  Session& session = attach();
  Request& request = copied(session, 16);
  Request& other = sharing(session, request);
  Request& tall = running(session, 16);
  const pool::SlotGrant grant = sut.take(session, 14);
  ASSERT_EQ(grant.code, ErrorCode::kOk) << "all that can be dropped is";
  EXPECT_EQ(request.table.in(Tier::kDram), 2);
  EXPECT_EQ(other.table.in(Tier::kDram), 2);
  EXPECT_EQ(sut.spare(kA), Bytes(0));
  EXPECT_FALSE(sut.takes(tall));
  EXPECT_EQ(sut.take(session, 1).code, ErrorCode::kOutOfMemory);
  ground.store.tiers.free(Tier::kDram, grant.slots);
}

TEST_F(SpareCopiesTest, OnlyAsManyAreDroppedAsAreNeeded) {
  Session& session = attach();
  Request& request = copied(session, 32);
  ASSERT_EQ(free_dram(), Bytes(0));
  const pool::SlotGrant grant = sut.take(session, 3);
  ASSERT_EQ(grant.code, ErrorCode::kOk);
  EXPECT_EQ(request.table.doubled(), 13);
  EXPECT_EQ(request.synced, 0u);
  EXPECT_TRUE(session.ahead.wanting.contains(&request));
  ground.store.tiers.free(Tier::kDram, grant.slots);
}

TEST_F(SpareCopiesTest, WhereDroppingAllWouldNotDoNothingIsDropped) {
  Session& session = attach();
  Request& request = copied(session, 32);
  EXPECT_EQ(sut.take(session, 17).code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(request.table.doubled(), 16);
}

TEST_F(SpareCopiesTest, WhatACopyOrStreamReadsIsNotSpare) {
  Session& session = attach();
  Request& request = copied(session, 16);
  const Bytes all = sut.spare(kA), others = all - kSlot * 8;
  request.layers.streams = {Ticket(7)};
  EXPECT_EQ(sut.spare(kA), others) << "an iteration streams it";
  request.layers.streams.clear();
  for (Ticket* const moves : {&request.moves.sync, &request.moves.rotation, &request.moves.fetch}) {
    *moves = Ticket(7);
    EXPECT_EQ(sut.spare(kA), others);
    *moves = Ticket();
  }
  EXPECT_EQ(sut.spare(kA), all);
}

TEST_F(SpareCopiesTest, WhoeverLeavesHbmFindsRoomForWhatDramLacks) {
  Session& session = attach();
  Request& small = running(session, 32);
  EXPECT_TRUE(sut.takes(small)) << "16 slots of 16";
  Request& large = running(session, 33);
  EXPECT_FALSE(sut.takes(large));
}

TEST_F(SpareCopiesTest, ItsOwnCopiesCountTwiceNever) {
  Session& session = attach();
  Request& request = copied(session, 24);  // 12 of 16 slots
  ASSERT_EQ(ground.memory.grow(request, Tokens(32)), ErrorCode::kOk);
  EXPECT_TRUE(sut.takes(request)) << "4 more beside what is there";
  ASSERT_EQ(ground.memory.grow(request, Tokens(36)), ErrorCode::kOk);
  EXPECT_FALSE(sut.takes(request)) << "its copies are no room for itself";
}

TEST_F(SpareCopiesTest, NothingIsCopiedAheadForOneThatIsOnItsWay) {
  Session& session = attach();
  Request& request = running(session, 8);
  request.leaving = true;
  sut.make_ahead(session);
  request.leaving = false;
  request.moves.rotation = Ticket(9);
  sut.make_ahead(session);
  request.moves.rotation = Ticket();
  EXPECT_THAT(emitted<CopySlots>(), IsEmpty());
  request.verdict = Verdict::kPaused;
  sut.make_ahead(session);
  EXPECT_THAT(emitted<CopySlots>(), SizeIs(1)) << "a paused one is there";
}

TEST_F(SpareCopiesTest, LayersThatLeaveAreCopiedThoughOperatorsWantNoOthers) {
  ground.context.tuning.rotation.eager = false;
  Session& session = attach();
  Request& request = running(session, 8);
  request.layers.away = {false, true};
  sut.make_ahead(session);
  ASSERT_THAT(emitted<CopySlots>(), SizeIs(1));
  EXPECT_THAT(emitted<CopySlots>()[0].pairs, SizeIs(2)) << "of one group";
  for (const std::uint32_t i : {1u, 3u}) EXPECT_TRUE(blocks.has(request.table, i, Tier::kDram));
}

TEST_F(SpareCopiesTest, WhileLayersFindNoRoomNobodyCopiesAhead) {
  Session& session = attach();
  Session& other = attach();
  Request& large = copied(session, 32);
  large.leaving = true;  // its copies are needed
  Request& streams = running(session, 8);
  streams.layers.away = {true, true};
  sut.make_ahead(session);
  EXPECT_TRUE(session.ahead.short_of_dram);
  ground.memory.end(large);
  running(other, 8);
  sut.make_ahead(other);
  EXPECT_EQ(other.ahead.under_way, Bytes(0)) << "it would take what the layers wait for";
  session.life.responsive = false;
  sut.make_ahead(other);
  EXPECT_GT(other.ahead.under_way, Bytes(0)) << "a silent engine waits for nothing";
}

TEST_F(SpareCopiesTest, ATakeThatFailsAsksForASlabToBeEmptied) {
  Session& session = attach();
  Session& other = attach_other_class();
  Request& request = copied(session, 16);
  request.leaving = true;
  EXPECT_EQ(sut.take(other, 5).code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(ground.store.compaction.candidates(), IsEmpty()) << "nothing to move it to";
}

}  // namespace
}  // namespace kvd::core
