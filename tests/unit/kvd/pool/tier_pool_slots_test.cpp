#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/pool/pool_fixture.hpp"

namespace kvd::pool {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::uint32_t> slabs_of(const std::vector<SlotId>& slots) {
  std::vector<std::uint32_t> result;
  result.reserve(slots.size());
  for (const SlotId slot : slots) result.push_back(slot.slab().value);
  return result;
}

TEST(TierPool, WithoutSlabsIsOutOfMemoryAndValid) {
  TierPool sut = make_pool(0);
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(sut.available(kA), Bytes{});
  EXPECT_EQ(sut.stats().capacity, Bytes{});
  EXPECT_EQ(sut.validate(), "");
}

TEST(TierPoolClass, SlotsMustFitTheSlab) {
  TierPool sut({.slab_bytes = kSlab, .slabs = 1}, {});
  EXPECT_EQ(sut.add_class(kSmall, Bytes(0)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(sut.add_class(kSmall, Bytes(-1)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(sut.add_class(kSmall, kSlab + Bytes(1)).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(sut.add_class(kSmall, kSlab).ok());
}

TEST(TierPoolClass, MayBeAddedAgainWithTheSameSizeOnly) {
  TierPool sut = make_pool(1);
  EXPECT_TRUE(sut.add_class(kSmall, Bytes(128)).ok());
  const Status other = sut.add_class(kSmall, Bytes(256));
  ASSERT_EQ(other.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(other.error().message, HasSubstr("128"));
}

TEST(TierPoolClass, ASlabHoldsAtMostWhatASlotIdCanNumber) {
  const Bytes most(SlotId::kMaxSlotsPerSlab);
  TierPool fits({.slab_bytes = most, .slabs = 1}, {});
  ASSERT_TRUE(fits.add_class(kSmall, Bytes(1)).ok());
  const auto slots = granted(fits, SlotId::kMaxSlotsPerSlab);
  EXPECT_EQ(slots.back().index(), SlotId::kMaxSlotsPerSlab - 1);
  EXPECT_EQ(allocate(fits, 1).code, ErrorCode::kOutOfMemory);

  TierPool too_many({.slab_bytes = most + Bytes(1), .slabs = 1}, {});
  EXPECT_EQ(too_many.add_class(kSmall, Bytes(1)).code(), ErrorCode::kInvalidArgument);
}

TEST(TierPoolClass, TheLastSlabsSlotsAreNeverTheIdThatMeansNone) {
  const std::uint32_t most = SlotId::kMaxSlabs - 1;
  TierPool sut({.slab_bytes = Bytes(1), .slabs = most}, {});
  ASSERT_TRUE(sut.add_class(kSmall, Bytes(1)).ok());
  const auto slots = granted(sut, most);
  EXPECT_EQ(slots.back().slab().value, most - 1);
  EXPECT_FALSE(slots.back().none());
}

TEST(TierPoolAllocate, ZeroSlotsAreAlwaysGranted) {
  TierPool sut = make_pool(0);
  const SlotGrant grant = allocate(sut, 0);
  EXPECT_EQ(grant.code, ErrorCode::kOk);
  EXPECT_THAT(grant.slots, IsEmpty());
}

TEST(TierPoolAllocate, OneSlotFills) {
  TierPool sut = make_pool(1);
  const auto slots = granted(sut, 1);
  EXPECT_EQ(slots[0], SlotId(SlabIndex(0), 0));
  EXPECT_EQ(sut.state(slots[0]), SlotState::kFilling);
  EXPECT_EQ(sut.used(kA), kSlab);
}

TEST(TierPoolAllocate, ManySlotsSpanSlabsInContiguousRuns) {
  TierPool sut = make_pool(3);
  const auto slots = granted(sut, kSmallSlots + 2);
  for (std::uint32_t i = 0; i < kSmallSlots; ++i) EXPECT_EQ(slots[i], SlotId(SlabIndex(0), i));
  EXPECT_EQ(slots[kSmallSlots], SlotId(SlabIndex(1), 0));
  EXPECT_EQ(slots[kSmallSlots + 1], SlotId(SlabIndex(1), 1));
}

TEST(TierPoolAllocate, IsAllOrNothing) {
  TierPool sut = make_pool(2);
  granted(sut, 1);
  const Bytes before = sut.used(kA);
  const SlotGrant grant = allocate(sut, 2 * kSmallSlots);
  EXPECT_EQ(grant.code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(grant.slots, IsEmpty());
  EXPECT_EQ(sut.used(kA), before);
  EXPECT_EQ(allocate(sut, 2 * kSmallSlots - 1).code, ErrorCode::kOk);
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kOutOfMemory);
}

TEST(TierPoolAllocate, FillsTheFullestSlabFirst) {
  TierPool sut = make_pool(3);
  const auto slots = granted(sut, 3 * kSmallSlots);
  for (std::uint32_t i = 0; i < 5; ++i) sut.release(SlotId(SlabIndex(0), i));
  for (std::uint32_t i = 0; i < 2; ++i) sut.release(SlotId(SlabIndex(2), i));
  EXPECT_THAT(slabs_of(granted(sut, 1)), ElementsAre(2));
  EXPECT_THAT(slabs_of(granted(sut, 2)), ElementsAre(2, 0));
}

TEST(TierPoolAllocate, OneSlabsRunIsNoReasonToLeaveTheFullest) {
  TierPool sut = make_pool(2);
  granted(sut, 2 * kSmallSlots);
  for (const std::uint32_t i : {1u, 4u}) sut.release(SlotId(SlabIndex(0), i));
  for (const std::uint32_t i : {0u, 1u, 2u}) sut.release(SlotId(SlabIndex(1), i));
  EXPECT_THAT(granted(sut, 2), ElementsAre(SlotId(SlabIndex(0), 1), SlotId(SlabIndex(0), 4)));
}

TEST(TierPoolAllocate, AmongEquallyFullSlabsTheLowestComesFirst) {
  TierPool sut = make_pool(3);
  granted(sut, 3 * kSmallSlots);
  for (const std::uint32_t slab : {2u, 1u, 0u}) sut.release(SlotId(SlabIndex(slab), 0));
  EXPECT_THAT(slabs_of(granted(sut, 2)), ElementsAre(0, 1));
}

TEST(TierPoolAllocate, TwoClassesShareOnePoolButNoSlab) {
  TierPool sut = make_pool(2);
  EXPECT_THAT(slabs_of(granted(sut, 1, kSmall)), ElementsAre(0));
  EXPECT_THAT(slabs_of(granted(sut, kLargeSlots, kLarge)), Each(1u));
  EXPECT_EQ(allocate(sut, 1, kLarge).code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(allocate(sut, 1, kSmall).code, ErrorCode::kOk);
}

TEST(TierPoolAllocate, AnEmptySlabChangesClassWithinItsDomain) {
  TierPool sut = make_pool(1);
  release_all(sut, granted(sut, 3, kSmall));
  const auto slots = granted(sut, kLargeSlots, kLarge);
  EXPECT_EQ(sut.slab(SlabIndex(0)).model_class, kLarge);
  EXPECT_EQ(sut.slab(SlabIndex(0)).slots, kLargeSlots);
  release_all(sut, slots);
  EXPECT_THAT(granted(sut, kSmallSlots, kSmall), SizeIs(kSmallSlots));
}

TEST(TierPoolAllocate, ASlabWithOneUsedSlotKeepsItsClass) {
  TierPool sut = make_pool(1);
  const auto slots = granted(sut, 2, kSmall);
  sut.release(slots[0]);
  EXPECT_EQ(allocate(sut, 1, kLarge).code, ErrorCode::kOutOfMemory);
}

TEST(TierPoolAllocate, TakesAnUnassignedSlabBeforeAnEmptyOneOfAnotherClass) {
  TierPool sut = make_pool(2);
  release_all(sut, granted(sut, 1, kSmall));
  EXPECT_THAT(slabs_of(granted(sut, 1, kLarge)), ElementsAre(1));
  EXPECT_EQ(sut.slab(SlabIndex(0)).model_class, kSmall);
}

TEST(TierPoolAllocate, DomainsShareNoSlab) {
  TierPool sut = make_pool(2);
  EXPECT_THAT(slabs_of(granted(sut, 1, kSmall, kA)), ElementsAre(0));
  EXPECT_THAT(slabs_of(granted(sut, 1, kSmall, kB)), ElementsAre(1));
  EXPECT_EQ(allocate(sut, kSmallSlots, kSmall, kA).code, ErrorCode::kOutOfMemory);
}

TEST(TierPoolStates, GoThroughALifeAndAreCounted) {
  TierPool sut = make_pool(1);
  const SlotId slot = granted(sut, 1)[0];
  const auto in = [&](SlotState state) {
    EXPECT_EQ(sut.state(slot), state);
    EXPECT_EQ(sut.stats().slots_by_state[static_cast<std::size_t>(state)], 1u);
    EXPECT_EQ(sut.stats().slots_by_state[0], kSmallSlots - 1);
    EXPECT_EQ(sut.validate(), "");
  };
  in(SlotState::kFilling);
  sut.mark_open(slot);
  in(SlotState::kOpen);
  sut.seal(slot);
  in(SlotState::kSealed);
  sut.drain(slot);
  in(SlotState::kDraining);
  sut.quarantine(slot);
  in(SlotState::kQuarantined);
  EXPECT_EQ(sut.stats().quarantined, Bytes(128));
  sut.scrub(slot);
  in(SlotState::kScrubbing);
  sut.scrubbed(slot);
  EXPECT_EQ(sut.state(slot), SlotState::kFree);
  EXPECT_EQ(sut.validate(), "");
}

TEST(TierPoolStates, ANotFreeSlotIsNotGranted) {
  TierPool sut = make_pool(1);
  const auto slots = granted(sut, kSmallSlots);
  sut.drain(slots[0]);
  sut.quarantine(slots[1]);
  sut.quarantine(slots[2]);
  sut.scrub(slots[2]);
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(sut.available(kA), Bytes{});
  sut.release(slots[0]);
  EXPECT_THAT(granted(sut, 1), ElementsAre(slots[0]));
}

/// Puts a fresh slot into a state, by the shortest way.
SlotId slot_in(TierPool& pool, SlotState state) {
  const SlotId slot = granted(pool, 1)[0];
  switch (state) {
    case SlotState::kFree:
      pool.release(slot);
      break;
    case SlotState::kFilling:
      break;
    case SlotState::kOpen:
      pool.mark_open(slot);
      break;
    case SlotState::kSealed:
      pool.seal(slot);
      break;
    case SlotState::kDraining:
      pool.drain(slot);
      break;
    case SlotState::kQuarantined:
      pool.quarantine(slot);
      break;
    case SlotState::kScrubbing:
      pool.quarantine(slot), pool.scrub(slot);
      break;
  }
  return slot;
}

struct Transition {
  const char* name;
  void (TierPool::*apply)(Slots);
  std::vector<SlotState> from;
  SlotState to;
};

const std::vector<Transition>& transitions() {
  using enum SlotState;
  static const std::vector<Transition> kAll = {
      {"mark_open", &TierPool::mark_open, {kFilling}, kOpen},
      {"seal", &TierPool::seal, {kFilling, kOpen}, kSealed},
      {"drain", &TierPool::drain, {kFilling, kOpen, kSealed}, kDraining},
      {"release", &TierPool::release, {kFilling, kOpen, kSealed, kDraining}, kFree},
      {"quarantine", &TierPool::quarantine, {kFilling, kOpen, kSealed, kDraining}, kQuarantined},
      {"scrub", &TierPool::scrub, {kQuarantined}, kScrubbing},
      {"scrubbed", &TierPool::scrubbed, {kScrubbing}, kFree}};
  return kAll;
}

TEST(TierPoolStatesDeathTest, EveryOtherTransitionIsABug) {
  for (const Transition& transition : transitions()) {
    for (std::size_t i = 0; i < kSlotStates; ++i) {
      const auto from = static_cast<SlotState>(i);
      SCOPED_TRACE(std::string(transition.name) + " from " + name(from));
      TierPool sut = make_pool(1);
      const SlotId slot = slot_in(sut, from);
      if (std::count(transition.from.begin(), transition.from.end(), from) == 0) {
        EXPECT_DEATH((sut.*transition.apply)(slot), "may not go from its state");
      } else {
        (sut.*transition.apply)(slot);
        EXPECT_EQ(sut.state(slot), transition.to);
        EXPECT_EQ(sut.validate(), "");
      }
    }
  }
}

TEST(TierPoolDeathTest, RefusesWhatIsNotThere) {
  TierPool sut = make_pool(1);
  EXPECT_DEATH(sut.seal(SlotId(SlabIndex(0), 0)), "no such slot");
  EXPECT_DEATH(sut.seal(SlotId(SlabIndex(1), 0)), "no such slab");
  EXPECT_DEATH(sut.seal(SlotId{}), "no such slab");
  EXPECT_DEATH(static_cast<void>(allocate(sut, 1, ClassId(9))), "before add_class");
  EXPECT_DEATH(static_cast<void>(allocate(sut, 1, kSmall, DomainId{})), "to a domain");
}

TEST(TierPoolDeathTest, RefusesAnImpossibleTier) {
  EXPECT_DEATH(TierPool({.slab_bytes = Bytes(0), .slabs = 1}, {}), "slabs of some size");
  EXPECT_DEATH(TierPool({.slab_bytes = kSlab, .slabs = SlotId::kMaxSlabs}, {}), "cannot number");
  EXPECT_DEATH(make_pool(1, {{kA, {.guarantee = whole(2)}}}), "not checked");
}

TEST(TierPoolStats, SumToTheCapacity) {
  TierPool sut = make_pool(4);
  granted(sut, 3, kSmall);
  granted(sut, 1, kLarge, kB);
  ASSERT_TRUE(sut.allocate_region(RegionId(1), kA, kEngine, kSlab).ok());
  const TierStats stats = sut.stats();
  EXPECT_EQ(stats.capacity, whole(4));
  EXPECT_EQ(stats.slab_bytes, kSlab);
  EXPECT_EQ(stats.slabs, 4u);
  EXPECT_EQ(stats.slabs_unassigned, 1u);
  EXPECT_EQ(stats.region, kSlab);
  EXPECT_EQ(stats.free, Bytes(1024 + 5 * 128 + 3 * 256));
  EXPECT_EQ(stats.capacity - stats.free - stats.region, Bytes(3 * 128 + 1 * 256));
}

TEST(TierPoolStats, FreeSlotsBesideUsedOnesAreStranded) {
  TierPool sut = make_pool(2);
  const auto slots = granted(sut, kSmallSlots);
  EXPECT_EQ(sut.stats().stranded, Bytes{});
  sut.release(slots[0]);
  EXPECT_EQ(sut.stats().stranded, Bytes(128));
  release_all(sut, {slots.begin() + 1, slots.end()});
  EXPECT_EQ(sut.stats().stranded, Bytes{});
}

TEST(TierPoolForeignSlab, IsTheEmptiestOfAnotherClassInTheDomain) {
  TierPool sut = make_pool(4);
  EXPECT_THAT(sut.foreign_slabs(kLarge, kA), IsEmpty());
  granted(sut, kSmallSlots + 2, kSmall);
  granted(sut, 1, kLarge);
  granted(sut, 1, kSmall, kB);
  EXPECT_EQ(sut.foreign_slabs(kLarge, kA).front(), SlabIndex(1));
  EXPECT_EQ(sut.foreign_slabs(kSmall, kA).front(), SlabIndex(2));
  EXPECT_EQ(sut.foreign_slabs(kLarge, kB).front(), SlabIndex(3));
  EXPECT_THAT(sut.foreign_slabs(kSmall, kB), IsEmpty());
}

}  // namespace
}  // namespace kvd::pool
