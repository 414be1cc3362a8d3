// Copies in DRAM of what HBM has: made ahead, and dropped for what has no other place.
#include "kvd/core/moves/dram_copies.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class DramCopiesTest : public PartsTest {
 protected:
  explicit DramCopiesTest(Config config = small_config()) : PartsTest(std::move(config)) {}

  /// Ends the copy that the request has under way, well.
  void end_copy(Session& session, Request& request) {
    const auto transfer = ground.store.transfers.ended(request.moves.sync);
    ASSERT_TRUE(transfer);
    for (const std::uint32_t i : transfer->places) {
      ground.store.blocks.settle(request.table, i, Tier::kDram, true);
    }
    ground.store.tiers.copy_ended(request.moves.sync);
    request.moves.sync = Ticket();
    session.ahead.under_way -= transfer->slot_bytes * std::ssize(transfer->places);
  }
  /// A request that decodes and has copies of all its full blocks.
  Request& copied(Session& session, std::int64_t tokens) {
    Request& request = running(session, tokens);
    sut.make_ahead(session);
    end_copy(session, request);
    return request;
  }

  DramCopies sut{ground};
};

TEST_F(DramCopiesTest, CopiesFullBlocksAheadAndNoOpenOnes) {
  Session& session = attach();
  Request& request = running(session, 6);
  sut.make_ahead(session);
  const auto copies = emitted<CopySlots>();
  ASSERT_THAT(copies, SizeIs(1));
  EXPECT_TRUE(copies[0].background);
  EXPECT_FALSE(copies[0].to_hbm);
  EXPECT_THAT(copies[0].pairs, SizeIs(2)) << "one block of two groups";
  EXPECT_EQ(request.synced, 1u);
  EXPECT_EQ(session.ahead.under_way, kSlot * 2);
  sut.make_ahead(session);
  EXPECT_THAT(emitted<CopySlots>(), SizeIs(1)) << "nothing is copied twice";
  end_copy(session, request);
}

TEST_F(DramCopiesTest, CopiesNothingAheadWhereOperatorsDoNotWantIt) {
  ground.context.tuning.rotation.eager = false;
  Session& session = attach();
  running(session, 8);
  sut.make_ahead(session);
  EXPECT_THAT(emitted<CopySlots>(), IsEmpty());
}

TEST_F(DramCopiesTest, WhatIsUnderWayIsAQuarterOfAStepsBudgetAtMost) {
  ground.context.tuning.rotation.b_xfer = kSlot * 16;
  Session& session = attach();
  Request& first = running(session, 16);
  Request& second = running(session, 16);
  sut.make_ahead(session);
  EXPECT_EQ(session.ahead.under_way, kSlot * 4);
  EXPECT_TRUE(first.moves.sync);
  EXPECT_FALSE(second.moves.sync);
  end_copy(session, first);
}

class SmallDram : public DramCopiesTest {
 protected:
  SmallDram() : DramCopiesTest(small_config(8, 2)) {}
};

TEST_F(SmallDram, StopsBeforeDramIsFull) {
  ground.context.tuning.rotation.b_xfer = kSlot * 8;
  Session& session = attach();
  Request& request = running(session, 48);
  for (int i = 0; i < 20; ++i) {
    sut.make_ahead(session);
    if (request.moves.sync) end_copy(session, request);
  }
  EXPECT_EQ(request.table.in(Tier::kDram), 14) << "two slots at a time, up to 80 % of 16";
}

TEST_F(SmallDram, CopiesMakeWayForWhatHasNoOtherPlace) {
  Session& session = attach();
  Request& request = copied(session, 32);
  ASSERT_EQ(request.table.in(Tier::kDram), 16);
  ASSERT_EQ(free_dram(), Bytes(0));
  EXPECT_EQ(sut.spare(kA), kSlot * 16) << "all of it can be made again";
  const pool::SlotGrant grant = sut.take(session, 4);
  EXPECT_EQ(grant.code, ErrorCode::kOk);
  EXPECT_EQ(request.table.in(Tier::kDram), 12);
  EXPECT_EQ(request.synced, 0u) << "the copies are made again";
  EXPECT_TRUE(session.ahead.wanting.contains(&request));
  ground.store.tiers.free(Tier::kDram, grant.slots);
}

TEST_F(SmallDram, CopiesOfLayersThatLeaveAreNotSpare) {
  Session& session = attach();
  Request& request = copied(session, 32);
  request.layers.away = {false, true};
  EXPECT_EQ(sut.spare(kA), kSlot * 8) << "those of the layer group that stays";
  ground.store.tiers.free(Tier::kHbm, {ground.store.blocks.vacate(request.table, 0, Tier::kHbm)});
  EXPECT_EQ(sut.spare(kA), kSlot * 7) << "a block that is in DRAM alone is no copy";
}

TEST_F(SmallDram, CopiesOfOneThatLeavesAreNotSpare) {
  Session& session = attach();
  Request& request = copied(session, 32);
  request.leaving = true;
  EXPECT_EQ(sut.spare(kA), Bytes(0));
  EXPECT_EQ(sut.take(session, 4).code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(request.table.in(Tier::kDram), 16);
}

TEST_F(SmallDram, TakesOneWhoseOwnCopiesMakeRoom) {
  Session& session = attach();
  Request& first = copied(session, 16);
  Request& second = running(session, 16);
  EXPECT_TRUE(sut.takes(second));
  EXPECT_TRUE(sut.takes(first)) << "what is there already needs no room";
  Request& large = running(session, 96);
  EXPECT_FALSE(sut.takes(large));
}

TEST_F(DramCopiesTest, ADomainsCopiesAreSpareForItselfAlone) {
  Session& session = attach();
  copied(session, 8);
  EXPECT_EQ(sut.spare(kA), free_dram(kA) + kSlot * 4);
  EXPECT_EQ(sut.spare(kB), free_dram(kB));
}

}  // namespace
}  // namespace kvd::core
