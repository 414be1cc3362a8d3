// Which slab of DRAM is emptied, what leaves it, and what becomes of the slots meanwhile.
#include "kvd/store/blocks/compaction.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/store/store_fixture.hpp"

namespace kvd::store {
namespace {

using pool::SlotState;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

/// Four slabs: two of small slots (8 a slab), two of large ones (4 a slab) but for what tests free.
class CompactionTest : public StoreTest {
 protected:
  CompactionTest() { small = taken_in_dram(16); }
  ~CompactionTest() override { EXPECT_EQ(tiers.validate(), ""); }

  static Taker large(DomainId domain = kA) { return {kOtherClass, domain, kEngine, Bytes(256)}; }
  std::vector<SlotId> take_large(std::uint32_t count) {
    const pool::SlotGrant grant = tiers.take(Tier::kDram, large(), count);
    EXPECT_EQ(grant.code, ErrorCode::kOk);
    return grant.slots;
  }
  /// Leaves this many of the slab's eight small slots, sealed.
  void leave(std::uint32_t slab, std::uint32_t count) {
    std::vector<SlotId> freed;
    for (std::uint32_t i = 0; i < 8; ++i) {
      const SlotId slot = small[slab * 8 + i];
      if (i < count) {
        tiers.seal(Tier::kDram, slot);
      } else {
        freed.push_back(slot);
      }
    }
    tiers.free(Tier::kDram, freed);
  }
  /// All slots left in the slab.
  std::vector<Movable> movable(std::uint32_t slab) const {
    std::vector<Movable> out;
    for (std::uint32_t i = 0; i < 8; ++i) {
      const SlotId slot = small[slab * 8 + i];
      if (dram().state(slot) == SlotState::kSealed) out.push_back({{}, i, slot, kSlot});
    }
    return out;
  }
  const pool::TierPool& dram() const { return tiers.pool(Tier::kDram); }
  SlabIndex slab_of(std::uint32_t slab) const { return small[std::size_t{slab} * 8].slab(); }

  std::vector<SlotId> small;
  Compaction sut{tiers};
};

TEST_F(CompactionTest, TheEmptiestForeignSlabWhoseBlocksFitElsewhereIsEmptied) {
  leave(0, 5);
  leave(1, 3);
  EXPECT_THAT(emptiable(dram(), kOtherClass, kA), ElementsAre(slab_of(1), slab_of(0)));
  EXPECT_THAT(emptiable(dram(), kClass, kA), IsEmpty()) << "they are its own";
}

TEST_F(CompactionTest, NoSlabIsEmptiedIntoAnEmptyOne) {
  leave(0, 5);
  leave(1, 0);
  EXPECT_THAT(emptiable(dram(), kOtherClass, kA), IsEmpty());
}

TEST_F(CompactionTest, BlocksThatDoNotFitIntoSlabsOfTheirOwnClassStay) {
  leave(0, 5);
  leave(1, 4);
  EXPECT_THAT(emptiable(dram(), kOtherClass, kA), IsEmpty()) << "3 and 4 slots are free";
}

TEST_F(CompactionTest, ASlabWithABlockUnderACopyIsPassedOver) {
  leave(0, 4);
  leave(1, 3);
  std::vector<Movable> blocks = movable(0), in_second = movable(1);
  in_second.pop_back();  // is being copied
  blocks.insert(blocks.end(), in_second.begin(), in_second.end());
  const auto slabs = emptiable(dram(), kOtherClass, kA);
  const auto chosen = first_movable(dram(), slabs, blocks);
  ASSERT_THAT(chosen, SizeIs(4));
  EXPECT_EQ(chosen[0].slot.slab(), slab_of(0));
  EXPECT_THAT(first_movable(dram(), slabs, in_second), IsEmpty());
}

TEST_F(CompactionTest, NothingMovesBeforeASlabIsWanted) {
  leave(0, 4);
  leave(1, 3);
  EXPECT_THAT(sut.candidates(), IsEmpty());
  sut.want(large(), Bytes(4096));
  EXPECT_THAT(sut.candidates(), IsEmpty()) << "as much is not free in all slabs together";
  sut.want(large(), Bytes(256));
  EXPECT_THAT(sut.candidates(), SizeIs(2));
}

TEST_F(CompactionTest, ARoundIsBoundedAndGoesIntoOtherSlabsOfTheClass) {
  leave(0, 4);
  leave(1, 3);
  sut.want(large(), Bytes(256));
  sut.start(sut.candidates(), movable(1), kSlot * 2);
  const auto orders_of_it = ordered<MoveSlots>();
  ASSERT_THAT(orders_of_it, SizeIs(1));
  const MoveSlots& order = orders_of_it[0];
  EXPECT_EQ(order.slot_bytes, kSlot);
  ASSERT_THAT(order.pairs, SizeIs(2));
  for (const MoveSlots::Pair& pair : order.pairs) {
    EXPECT_EQ(pair.from.slab(), slab_of(1));
    EXPECT_EQ(pair.to.slab(), slab_of(0));
    EXPECT_EQ(dram().state(pair.to), SlotState::kFilling);
  }
  EXPECT_EQ(sut.slots(), 2u);
  EXPECT_TRUE(sut.under_way(kA));
  EXPECT_FALSE(sut.under_way(kB));
  EXPECT_THAT(sut.candidates(), IsEmpty()) << "one round at a time";
  EXPECT_FALSE(sut.ended(Ticket(order.ticket.value + 1)).has_value());
  const auto round = sut.ended(order.ticket);
  ASSERT_TRUE(round.has_value());
  EXPECT_THAT(round->moves, SizeIs(2));
  EXPECT_EQ(sut.slots(), 0u);
  EXPECT_FALSE(sut.ended(order.ticket).has_value()) << "a device may report twice";
}

TEST_F(CompactionTest, ABlockLargerThanTheBoundMovesAlone) {
  leave(0, 4);
  leave(1, 3);
  sut.want(large(), Bytes(256));
  sut.start(sut.candidates(), movable(1), Bytes(1));
  EXPECT_EQ(sut.slots(), 1u);
}

TEST_F(CompactionTest, WhatIsGivenUpWhileItMovesIsFreeOnlyAfterwards) {
  leave(0, 4);
  leave(1, 3);
  sut.want(large(), Bytes(256));
  sut.start(sut.candidates(), movable(1), kSlot * 8);
  const Ticket ticket = ordered<MoveSlots>().at(0).ticket;
  tiers.free(Tier::kDram, {small[8], small[9], small[10]});
  EXPECT_EQ(in(Tier::kDram, SlotState::kDraining), 3u);
  EXPECT_EQ(tiers.take(Tier::kDram, large(), 12).code, ErrorCode::kOutOfMemory);
  (void)sut.ended(ticket);
  tiers.copy_ended(ticket);
  EXPECT_EQ(in(Tier::kDram, SlotState::kDraining), 0u);
  EXPECT_THAT(take_large(12), SizeIs(12)) << "the emptied slab has changed class";
}

TEST_F(CompactionTest, ASlabThatHasBeenEmptiedEndsTheWant) {
  leave(0, 4);
  leave(1, 3);
  sut.want(large(), Bytes(256));
  sut.start(sut.candidates(), movable(1), kSlot * 8);
  const auto order = ordered<MoveSlots>().at(0);
  ASSERT_TRUE(sut.ended(order.ticket).has_value());
  for (const MoveSlots::Pair& pair : order.pairs) tiers.seal(Tier::kDram, pair.to);
  tiers.free(Tier::kDram, {small[8], small[9], small[10]});
  tiers.copy_ended(order.ticket);
  EXPECT_THAT(sut.candidates(), IsEmpty());
  (void)taken_in_dram(2);  // one fills the first slab, one is alone in the second
  tiers.free(Tier::kDram, {small[0]});
  EXPECT_THAT(sut.candidates(), IsEmpty()) << "nothing is wanted any more";
  sut.want(large(), Bytes(256));
  EXPECT_THAT(sut.candidates(), Not(IsEmpty()));
}

TEST_F(CompactionTest, OneOfAnotherDomainIsZeroedOnceItIsEmpty) {
  take_large(8);  // A holds all four slabs
  leave(0, 4);
  leave(1, 3);
  sut.want(large(kB), Bytes(256));
  sut.start(sut.candidates(), movable(1), kSlot * 8);
  const auto order = ordered<MoveSlots>().at(0);
  EXPECT_TRUE(sut.under_way(kB));
  ASSERT_TRUE(sut.ended(order.ticket).has_value());
  for (const MoveSlots::Pair& pair : order.pairs) tiers.seal(Tier::kDram, pair.to);
  tiers.free(Tier::kDram, {small[8], small[9], small[10]});
  tiers.copy_ended(order.ticket);
  EXPECT_THAT(sut.candidates(), IsEmpty());
  const auto scrubs = ordered<Scrub>();
  ASSERT_THAT(scrubs, SizeIs(1));
  EXPECT_THAT(scrubs[0].slabs, ElementsAre(slab_of(1)));
  ASSERT_TRUE(tiers.scrub_ended(scrubs[0].ticket, true));
  EXPECT_EQ(tiers.take(Tier::kDram, large(kB), 4).code, ErrorCode::kOk);
}

}  // namespace
}  // namespace kvd::store
