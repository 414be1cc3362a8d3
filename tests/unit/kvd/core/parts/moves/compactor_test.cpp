// Blocks that move within DRAM, so that another class gets a whole slab.
#include "kvd/core/moves/compactor.hpp"

#include <gmock/gmock.h>

#include "kvd/core/moves/dram_copies.hpp"
#include "kvd/core/moves/streams.hpp"
#include "kvd/core/moves/swaps.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr ClassId kOther{2};

/// DRAM of two slabs. The requests `few` and `many` are parked there, with 2 blocks in the first
/// slab and 4 in the second: no slab is left for the other class, though half of DRAM is free.
class CompactorTest : public PartsTest {
 protected:
  CompactorTest() : PartsTest(small_config(4, 2)) {
    EXPECT_TRUE(ground.store.tiers.add_class(kOther, kSlot * 2).ok());
    Session& session = attach();
    Request& gone = parked(swaps, session, 12);
    few = &parked(swaps, session, 4);
    many = &parked(swaps, session, 8);
    ground.memory.end(gone);
  }

  void want() { ground.store.compaction.want(taker, kSlot * 2); }
  bool can_have() {
    pool::SlotGrant grant = ground.store.tiers.try_take(Tier::kDram, taker, 1);
    ground.store.tiers.free(Tier::kDram, grant.slots);
    return grant.code == ErrorCode::kOk;
  }
  /// The one round that was ordered.
  store::Compaction::Round round() {
    const auto orders = emitted<MoveSlots>();
    EXPECT_THAT(orders, SizeIs(1));
    auto ended = ground.store.compaction.ended(orders.at(0).ticket);
    EXPECT_TRUE(ended);
    return ended.value_or(store::Compaction::Round{});
  }
  void finish(const store::Compaction::Round& moved, bool ok) {
    sut.finish(moved, ok);
    ground.store.tiers.copy_ended(moved.ticket);
  }
  std::vector<SlotId> slots(const Request& request) {
    std::vector<SlotId> found;
    ground.store.blocks.each_slot(request.table, Tier::kDram,
                                  [&](SlotId slot) { found.push_back(slot); });
    return found;
  }

  const store::Taker taker{kOther, kA, EngineId(9), kSlot * 2};
  Request* few = nullptr;
  Request* many = nullptr;
  Compactor sut{ground};
  DramCopies copies{ground};
  Streams streams{ground};
  Swaps swaps{ground, copies, streams, sut};
};

TEST_F(CompactorTest, NothingMovesWhileNobodyWantsASlab) {
  sut.start();
  EXPECT_THAT(emitted<MoveSlots>(), IsEmpty());
}

TEST_F(CompactorTest, TheEmptiestSlabIsEmptied) {
  EXPECT_FALSE(can_have());
  const SlabIndex emptied = slots(*few).at(0).slab();
  want();
  sut.start();
  const auto moved = round();
  EXPECT_THAT(moved.moves, SizeIs(2));
  finish(moved, true);
  for (const SlotId slot : slots(*few)) EXPECT_NE(slot.slab(), emptied);
  EXPECT_EQ(slots(*few).at(0).slab(), slots(*many).at(0).slab());
  EXPECT_TRUE(can_have());
  EXPECT_EQ(ground.context.counters.compacted.blocks, 2u);
  EXPECT_EQ(ground.context.counters.compacted.bytes, 256u);
}

TEST_F(CompactorTest, ACopyThatFailedMovesNothing) {
  const auto before = slots(*few);
  want();
  sut.start();
  finish(round(), false);
  EXPECT_EQ(slots(*few), before);
  EXPECT_EQ(free_dram(), kSlab * 2 - kSlot * 6);
  EXPECT_EQ(ground.context.counters.compacted.blocks, 0u);
}

TEST_F(CompactorTest, ABlockThatIsReadStaysWhereItIs) {
  few->moves.rotation = Ticket(99);
  want();
  sut.start();
  const auto orders = emitted<MoveSlots>();
  ASSERT_THAT(orders, SizeIs(1)) << "the other slab's";
  EXPECT_THAT(orders[0].pairs, SizeIs(4));
  few->moves.rotation = Ticket();
  finish(round(), true);
}

TEST_F(CompactorTest, WhatEndedMeanwhileLeavesItsNewSlotFree) {
  want();
  sut.start();
  const auto moved = round();
  ground.memory.end(*few);
  finish(moved, true);
  EXPECT_EQ(free_dram(), kSlab * 2 - kSlot * 4);
  EXPECT_EQ(ground.context.counters.compacted.blocks, 0u);
}

TEST_F(CompactorTest, ABlockThatBeganToBeReadKeepsItsOldSlotUntilThen) {
  want();
  sut.start();
  const auto moved = round();
  few->moves.fetch = Ticket(77);
  finish(moved, true);
  EXPECT_EQ(free_dram(), kSlab * 2 - kSlot * 8) << "old and new";
  few->moves.fetch = Ticket();
  ground.store.tiers.copy_ended(Ticket(77));
  EXPECT_EQ(free_dram(), kSlab * 2 - kSlot * 6);
}

}  // namespace
}  // namespace kvd::core
