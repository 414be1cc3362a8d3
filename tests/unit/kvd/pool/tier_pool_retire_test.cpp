// Slabs kept for a region: no class gets them while their last slots come free.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/pool/pool_fixture.hpp"

namespace kvd::pool {
namespace {

using ::testing::ElementsAre;

constexpr RegionId kRegion{5};
constexpr SlabIndex k0{0}, k1{1};

ErrorCode lease(TierPool& pool, Bytes bytes, RegionId region = kRegion, DomainId domain = kA) {
  const auto slabs = pool.allocate_region(region, domain, kEngine, bytes);
  EXPECT_EQ(pool.validate(), "");
  return slabs.ok() ? ErrorCode::kOk : slabs.error().code;
}

/// A pool of two slabs, one slot of slab 0 used, slab 1 full.
struct Filled {
  TierPool pool = make_pool(2);
  std::vector<SlotId> slots = granted(pool, 2 * kSmallSlots);
  Filled() {
    for (std::uint32_t i = 1; i < kSmallSlots; ++i) pool.release(slots[i]);
  }
};

TEST(TierPoolRetire, GrantsNoFurtherSlot) {
  Filled filled;
  TierPool& sut = filled.pool;
  EXPECT_EQ(sut.available(kA), Bytes(896));
  sut.retire(k0);
  EXPECT_EQ(sut.validate(), "");
  EXPECT_EQ(sut.available(kA), Bytes{});
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kOutOfMemory);
  EXPECT_TRUE(sut.slab(k0).retiring);
  EXPECT_FALSE(sut.slab(k1).retiring);
  EXPECT_EQ(sut.stats().free, Bytes(896)) << "still free memory";
}

TEST(TierPoolRetire, ASlotThatComesFreeIsNotGrantedAgain) {
  Filled filled;
  TierPool& sut = filled.pool;
  sut.retire(k1);
  sut.release(filled.slots[kSmallSlots]);
  EXPECT_EQ(sut.validate(), "");
  EXPECT_EQ(sut.available(kA), Bytes(896));
  granted(sut, 7);
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kOutOfMemory);
}

TEST(TierPoolRetire, TheLastSlotMakesTheSlabUnassignedAtOnce) {
  Filled filled;
  TierPool& sut = filled.pool;
  sut.retire(k0);
  EXPECT_EQ(sut.slab(k0).use, SlabUse::kClass);
  sut.release(filled.slots[0]);
  EXPECT_EQ(sut.validate(), "");
  EXPECT_EQ(sut.slab(k0).use, SlabUse::kDirty);
  EXPECT_TRUE(sut.slab(k0).retiring);
  EXPECT_EQ(sut.slab(k0).domain, kA);
}

TEST(TierPoolRetire, AnEmptySlabIsUnassignedAtOnce) {
  TierPool sut = make_pool(1);
  release_all(sut, granted(sut, 1));
  sut.retire(k0);
  EXPECT_EQ(sut.slab(k0).use, SlabUse::kDirty);
  EXPECT_EQ(sut.validate(), "");
}

TEST(TierPoolRetire, WhatCameOfItGoesToNoClassAndNoOtherDomain) {
  Filled filled;
  TierPool& sut = filled.pool;
  sut.retire(k0);
  sut.release(filled.slots[0]);
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kOutOfMemory) << "dirty";
  EXPECT_EQ(sut.available(kA), Bytes{});
  EXPECT_THAT(sut.take_dirty(), ElementsAre(k0));
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kOutOfMemory) << "scrubbing";
  sut.slab_scrubbed(k0);
  EXPECT_EQ(sut.validate(), "");
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kOutOfMemory) << "clean";
  EXPECT_EQ(allocate(sut, 1, kSmall, kB).code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(lease(sut, kSlab, kRegion, kB), ErrorCode::kOutOfMemory);
  EXPECT_EQ(sut.used(kA), whole(2)) << "kept for the domain, so it counts towards it";
  EXPECT_EQ(lease(sut, kSlab), ErrorCode::kOk);
  EXPECT_FALSE(sut.slab(k0).retiring);
}

TEST(TierPoolRetire, ARegionOfTheDomainMayWaitForIt) {
  Filled filled;
  TierPool& sut = filled.pool;
  EXPECT_EQ(sut.region_room(kA), 0u);
  EXPECT_EQ(lease(sut, whole(1)), ErrorCode::kOutOfMemory);
  sut.retire(k0);
  EXPECT_EQ(sut.region_room(kA), 1u);
  EXPECT_EQ(lease(sut, whole(1)), ErrorCode::kWouldBlock);
  EXPECT_EQ(lease(sut, whole(1), kRegion, kB), ErrorCode::kOutOfMemory);
  EXPECT_EQ(sut.region_room(kB), 0u);
}

TEST(TierPoolRetire, RoomHeedsTheMaximum) {
  TierPool sut = make_pool(4, {{kA, {.maximum = whole(2)}}});
  granted(sut, 1);
  EXPECT_EQ(sut.region_room(kA), 1u);
  EXPECT_EQ(sut.region_room(kB), 3u);
}

TEST(TierPoolRetire, ARegionTakesKeptSlabsFirst) {
  TierPool sut = make_pool(3);
  const auto slots = granted(sut, 2 * kSmallSlots);
  sut.retire(k1);
  for (std::uint32_t i = kSmallSlots; i < 2 * kSmallSlots; ++i) sut.release(slots[i]);
  scrub_slabs(sut);
  EXPECT_EQ(lease(sut, whole(1)), ErrorCode::kOk);
  EXPECT_EQ(sut.slab(k1).region, kRegion);
}

TEST(TierPoolRetire, UnretireGivesTheFreeSlotsBack) {
  Filled filled;
  TierPool& sut = filled.pool;
  sut.retire(k0);
  sut.unretire(k0);
  sut.unretire(k0);
  EXPECT_EQ(sut.validate(), "");
  EXPECT_EQ(sut.available(kA), Bytes(896));
  granted(sut, 7);
}

TEST(TierPoolRetire, UnretireOfACleanSlabGivesItToEveryone) {
  Filled filled;
  TierPool& sut = filled.pool;
  sut.retire(k0);
  sut.release(filled.slots[0]);
  scrub_slabs(sut);
  sut.unretire(k0);
  EXPECT_EQ(sut.validate(), "");
  EXPECT_EQ(sut.slab(k0).domain, DomainId{});
  granted(sut, 1, kSmall, kB);
}

TEST(TierPoolRetire, UnretireOfADirtySlabKeepsItFromOtherDomains) {
  Filled filled;
  TierPool& sut = filled.pool;
  sut.retire(k0);
  sut.release(filled.slots[0]);
  sut.unretire(k0);
  EXPECT_EQ(sut.validate(), "");
  EXPECT_EQ(allocate(sut, 1, kSmall, kB).code, ErrorCode::kWouldBlock);
  granted(sut, 1);
}

TEST(TierPoolRetire, ALateWriterMakesAKeptSlabDirtyAgain) {
  Filled filled;
  TierPool& sut = filled.pool;
  sut.set_mapped(k0, kEngine, true);
  sut.retire(k0);
  sut.release(filled.slots[0]);
  scrub_slabs(sut);
  EXPECT_EQ(sut.slab(k0).use, SlabUse::kClean);
  sut.set_mapped(k0, kEngine, false);
  EXPECT_EQ(sut.slab(k0).use, SlabUse::kDirty);
  EXPECT_EQ(sut.validate(), "");
}

TEST(TierPoolRetire, ClassPressureLooksElsewhere) {
  Filled filled;
  TierPool& sut = filled.pool;
  EXPECT_EQ(sut.foreign_slabs(kLarge, kA).front(), k0);
  sut.retire(k0);
  EXPECT_EQ(sut.foreign_slabs(kLarge, kA).front(), k1);
}

TEST(TierPoolRetireDeathTest, ARegionCannotRetire) {
  TierPool sut = make_pool(1);
  ASSERT_EQ(lease(sut, whole(1)), ErrorCode::kOk);
  EXPECT_DEATH(sut.retire(k0), "retires");
}

}  // namespace
}  // namespace kvd::pool
