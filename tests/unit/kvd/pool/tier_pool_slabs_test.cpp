#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/pool/pool_fixture.hpp"

namespace kvd::pool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr RegionId kRegion{5};
constexpr SlabIndex k0{0}, k1{1}, k2{2};

SlabUse use(const TierPool& pool, SlabIndex index) { return pool.slab(index).use; }

/// Slab 0 of a pool of one: used by domain A, empty again, unassigned and dirty.
TierPool pool_with_dirty_slab() {
  TierPool pool = make_pool(1);
  release_all(pool, granted(pool, 1));
  EXPECT_THAT(pool.reclaim_empty_slabs(), ElementsAre(k0));
  return pool;
}

TEST(TierPoolMapping, ASlotIsGrantedOnlyWhereTheOwnerMapsTheSlab) {
  TierPool sut = make_pool(2);
  SlabSet mapped(2, false);
  const SlotGrant first = allocate(sut, 1, kSmall, kA, &mapped);
  EXPECT_EQ(first.code, ErrorCode::kWouldBlock);
  EXPECT_THAT(first.slots, IsEmpty());
  EXPECT_THAT(first.to_map, ElementsAre(k0));
  EXPECT_EQ(sut.slab(k0).model_class, kSmall);
  EXPECT_EQ(sut.validate(), "");

  mapped[0] = true;
  const SlotGrant second = allocate(sut, 1, kSmall, kA, &mapped);
  EXPECT_EQ(second.code, ErrorCode::kOk);
  EXPECT_THAT(second.to_map, IsEmpty());
  EXPECT_THAT(second.slots, ElementsAre(SlotId(k0, 0)));
}

TEST(TierPoolMapping, AskingAgainUnmappedNamesTheSameSlab) {
  TierPool sut = make_pool(2);
  const SlabSet none;
  EXPECT_THAT(allocate(sut, 1, kSmall, kA, &none).to_map, ElementsAre(k0));
  EXPECT_THAT(allocate(sut, 1, kSmall, kA, &none).to_map, ElementsAre(k0));
  EXPECT_EQ(sut.used(kA), kSlab);
}

TEST(TierPoolMapping, NamesAsManySlabsAsTheRequestNeedsBeyondTheMappedOnes) {
  TierPool sut = make_pool(3);
  SlabSet mapped = {true, false, false};
  const SlotGrant grant = allocate(sut, 2 * kSmallSlots + 1, kSmall, kA, &mapped);
  EXPECT_EQ(grant.code, ErrorCode::kWouldBlock);
  EXPECT_THAT(grant.to_map, ElementsAre(k1, k2));
}

TEST(TierPoolMapping, AMappedSlabComesBeforeAFullerUnmappedOne) {
  TierPool sut = make_pool(2);
  granted(sut, kSmallSlots + 1);
  sut.release(SlotId(k0, 0));
  const SlabSet mapped = {false, true};
  EXPECT_THAT(allocate(sut, 1, kSmall, kA, &mapped).slots, ElementsAre(SlotId(k1, 1)));
}

TEST(TierPoolMapping, AnUnmappedSlabOfTheClassComesBeforeANewOne) {
  TierPool sut = make_pool(2);
  granted(sut, 1);
  const SlabSet none(2, false);
  EXPECT_THAT(allocate(sut, 1, kSmall, kA, &none).to_map, ElementsAre(k0));
  EXPECT_EQ(use(sut, k1), SlabUse::kClean);
}

TEST(TierPoolMapping, AReachableUnassignedSlabIsGrantedAtOnce) {
  TierPool sut = make_pool(2);
  granted(sut, kSmallSlots);
  const auto second = granted(sut, 1);
  sut.set_mapped(k1, kEngine, true);
  release_all(sut, second);
  EXPECT_THAT(sut.reclaim_empty_slabs(), ElementsAre(k1));
  const SlabSet mapped = {false, true};
  EXPECT_THAT(allocate(sut, 1, kLarge, kA, &mapped).slots, ElementsAre(SlotId(k1, 0)));
}

TEST(TierPoolMapping, ANothingToMapFailureChangesNothing) {
  TierPool sut = make_pool(2);
  const SlabSet none(2, false);
  const SlotGrant grant = allocate(sut, 3 * kSmallSlots, kSmall, kA, &none);
  EXPECT_EQ(grant.code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(grant.to_map, IsEmpty());
  EXPECT_EQ(sut.used(kA), Bytes{});
}

TEST(TierPoolDomainChange, ADirtySlabGoesBackToItsDomainAtOnce) {
  TierPool sut = pool_with_dirty_slab();
  EXPECT_EQ(sut.available(kA), kSlab);
  EXPECT_THAT(granted(sut, 1, kLarge, kA), SizeIs(1));
}

TEST(TierPoolDomainChange, ADirtySlabIsScrubbedBeforeAnotherDomainGetsIt) {
  TierPool sut = pool_with_dirty_slab();
  const SlotGrant dirty = allocate(sut, 1, kSmall, kB);
  EXPECT_EQ(dirty.code, ErrorCode::kWouldBlock);
  EXPECT_THAT(dirty.to_map, IsEmpty());
  EXPECT_EQ(sut.available(kB), Bytes{});

  EXPECT_THAT(sut.take_dirty(), ElementsAre(k0));
  EXPECT_EQ(use(sut, k0), SlabUse::kScrubbing);
  EXPECT_EQ(allocate(sut, 1, kSmall, kB).code, ErrorCode::kWouldBlock);
  EXPECT_EQ(allocate(sut, 1, kSmall, kA).code, ErrorCode::kWouldBlock);
  EXPECT_THAT(sut.take_dirty(), IsEmpty());

  sut.slab_scrubbed(k0);
  EXPECT_EQ(use(sut, k0), SlabUse::kClean);
  EXPECT_EQ(sut.slab(k0).domain, DomainId{});
  EXPECT_THAT(granted(sut, 1, kSmall, kB), SizeIs(1));
}

TEST(TierPoolDomainChange, AnEmptyClassSlabOfAnotherDomainIsReclaimedFirst) {
  TierPool sut = make_pool(1);
  release_all(sut, granted(sut, 1));
  EXPECT_EQ(allocate(sut, 1, kSmall, kB).code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(sut.reclaim_empty_slabs(), ElementsAre(k0));
  scrub_slabs(sut);
  EXPECT_THAT(granted(sut, 1, kSmall, kB), SizeIs(1));
}

TEST(TierPoolDomainChange, AMappedSlabStaysWithItsDomainAndCounts) {
  TierPool sut = make_pool(1);
  const auto slots = granted(sut, 1);
  sut.set_mapped(k0, kEngine, true);
  release_all(sut, slots);
  sut.reclaim_empty_slabs();
  scrub_slabs(sut);
  EXPECT_EQ(use(sut, k0), SlabUse::kClean);
  EXPECT_EQ(sut.used(kA), kSlab);
  EXPECT_EQ(sut.available(kA), kSlab);
  EXPECT_EQ(sut.available(kB), Bytes{});
  EXPECT_EQ(allocate(sut, 1, kSmall, kB).code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(sut.validate(), "");
}

TEST(TierPoolDomainChange, ASlabZeroedWhileMappedIsDirtyAgainOnceUnmapped) {
  TierPool sut = make_pool(1);
  const auto slots = granted(sut, 1);
  sut.set_mapped(k0, kEngine, true);
  sut.set_mapped(k0, kOther, true);
  release_all(sut, slots);
  sut.reclaim_empty_slabs();
  scrub_slabs(sut);
  sut.set_mapped(k0, kEngine, false);
  EXPECT_EQ(use(sut, k0), SlabUse::kClean);
  sut.set_mapped(k0, kOther, false);
  EXPECT_EQ(use(sut, k0), SlabUse::kDirty);
  EXPECT_EQ(sut.used(kA), Bytes{});
  EXPECT_THAT(granted(sut, 1, kSmall, kA), SizeIs(1));
}

TEST(TierPoolDomainChange, ASlabUnmappedWhileBeingZeroedIsZeroedAgain) {
  TierPool sut = make_pool(1);
  const auto slots = granted(sut, 1);
  sut.set_mapped(k0, kEngine, true);
  release_all(sut, slots);
  sut.reclaim_empty_slabs();
  ASSERT_THAT(sut.take_dirty(), ElementsAre(k0));
  sut.set_mapped(k0, kEngine, false);
  EXPECT_EQ(sut.validate(), "");
  sut.slab_scrubbed(k0);
  EXPECT_EQ(use(sut, k0), SlabUse::kDirty);
  scrub_slabs(sut);
  EXPECT_EQ(use(sut, k0), SlabUse::kClean);
  EXPECT_THAT(granted(sut, 1, kSmall, kA), SizeIs(1));
}

TEST(TierPoolDomainChange, MappingTwiceOrUnmappingAStrangerChangesNothing) {
  TierPool sut = make_pool(1);
  const auto slots = granted(sut, 1);
  sut.set_mapped(k0, kEngine, true);
  sut.set_mapped(k0, kEngine, true);
  sut.set_mapped(k0, kOther, false);
  sut.set_mapped(k0, kEngine, false);
  release_all(sut, slots);
  sut.reclaim_empty_slabs();
  EXPECT_EQ(sut.used(kA), Bytes{});
  EXPECT_EQ(sut.validate(), "");
}

TEST(TierPoolReclaim, LeavesSlabsWithAUsedSlotAndRegions) {
  TierPool sut = make_pool(3);
  granted(sut, 1, kSmall);
  release_all(sut, granted(sut, 1, kLarge));
  ASSERT_TRUE(sut.allocate_region(kRegion, kA, kEngine, kSlab).ok());
  EXPECT_THAT(sut.reclaim_empty_slabs(), ElementsAre(k1));
  EXPECT_THAT(sut.reclaim_empty_slabs(), IsEmpty());
  EXPECT_EQ(sut.validate(), "");
}

TEST(TierPoolReclaim, ANeverUsedPoolHasNothingToReclaimOrScrub) {
  TierPool sut = make_pool(2);
  EXPECT_THAT(sut.reclaim_empty_slabs(), IsEmpty());
  EXPECT_THAT(sut.take_dirty(), IsEmpty());
}

TEST(TierPoolRegion, LeasesWholeSlabsAscending) {
  TierPool sut = make_pool(3);
  const auto region = sut.allocate_region(kRegion, kA, kEngine, kSlab + Bytes(1));
  ASSERT_TRUE(region.ok());
  EXPECT_THAT(*region, ElementsAre(k0, k1));
  const SlabView view = sut.slab(k1);
  EXPECT_EQ(view.use, SlabUse::kRegion);
  EXPECT_EQ(view.region, kRegion);
  EXPECT_EQ(view.owner, kEngine);
  EXPECT_EQ(view.domain, kA);
  EXPECT_EQ(sut.used(kA), whole(2));
  EXPECT_EQ(sut.stats().region, whole(2));
  EXPECT_EQ(sut.validate(), "");
}

TEST(TierPoolRegion, NeedsASizeAndMemory) {
  TierPool sut = make_pool(2);
  const auto code = [&](Bytes bytes) {
    return sut.allocate_region(kRegion, kA, kEngine, bytes).error().code;
  };
  EXPECT_EQ(code(Bytes(0)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Bytes(-5)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(whole(3)), ErrorCode::kOutOfMemory);
  EXPECT_EQ(code(Bytes(INT64_MAX)), ErrorCode::kOutOfMemory);
  EXPECT_THAT(sut.allocate_region(kRegion, kA, kEngine, whole(3)).error().message,
              HasSubstr("needs 3 slabs: 2 are free"));
  EXPECT_EQ(sut.used(kA), Bytes{});
  EXPECT_TRUE(sut.allocate_region(kRegion, kA, kEngine, whole(2)).ok());
}

TEST(TierPoolRegion, WaitsForDirtyScrubbingAndQuarantinedSlabs) {
  TierPool sut = make_pool(1);
  ASSERT_TRUE(sut.allocate_region(kRegion, kA, kEngine, kSlab).ok());
  const auto code = [&] {
    const auto region = sut.allocate_region(RegionId(6), kA, kEngine, kSlab);
    return region.ok() ? ErrorCode::kOk : region.error().code;
  };
  EXPECT_EQ(code(), ErrorCode::kOutOfMemory);
  sut.quarantine_region(kRegion);
  EXPECT_EQ(sut.stats().quarantined, kSlab);
  EXPECT_EQ(code(), ErrorCode::kWouldBlock);
  EXPECT_EQ(sut.validate(), "");
  sut.release_region(kRegion);
  EXPECT_EQ(use(sut, k0), SlabUse::kDirty);
  EXPECT_EQ(code(), ErrorCode::kWouldBlock);
  ASSERT_THAT(sut.take_dirty(), ElementsAre(k0));
  EXPECT_EQ(code(), ErrorCode::kWouldBlock);
  sut.slab_scrubbed(k0);
  EXPECT_EQ(code(), ErrorCode::kOk);
}

TEST(TierPoolRegion, IsNoSupplyForSlots) {
  TierPool sut = make_pool(1);
  ASSERT_TRUE(sut.allocate_region(kRegion, kA, kEngine, kSlab).ok());
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kOutOfMemory);
  sut.quarantine_region(kRegion);
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kOutOfMemory);
}

TEST(TierPoolRegion, TakesHeldCleanSlabsOfItsDomainFirst) {
  TierPool sut = make_pool(2);
  granted(sut, kSmallSlots);
  const auto second = granted(sut, 1);
  sut.set_mapped(k1, kEngine, true);
  release_all(sut, second);
  for (std::uint32_t i = 0; i < kSmallSlots; ++i) sut.release(SlotId(k0, i));
  sut.reclaim_empty_slabs();
  scrub_slabs(sut);
  const auto region = sut.allocate_region(kRegion, kA, kOther, kSlab);
  ASSERT_TRUE(region.ok());
  EXPECT_THAT(*region, ElementsAre(k1));
}

TEST(TierPoolSlabsDeathTest, RefusesBrokenRules) {
  TierPool sut = make_pool(2);
  ASSERT_TRUE(sut.allocate_region(kRegion, kA, kEngine, kSlab).ok());
  const auto lease = [&](RegionId id, DomainId domain) {
    static_cast<void>(sut.allocate_region(id, domain, kEngine, kSlab));
  };
  EXPECT_DEATH(lease(kRegion, kA), "used twice");
  EXPECT_DEATH(lease(RegionId{}, kA), "has an id");
  EXPECT_DEATH(lease(RegionId(9), DomainId{}), "and a domain");
  EXPECT_DEATH(sut.release_region(RegionId(9)), "does not exist");
  EXPECT_DEATH(sut.quarantine_region(RegionId(9)), "does not exist");
  EXPECT_DEATH(sut.slab_scrubbed(k0), "not being scrubbed");
  EXPECT_DEATH(sut.set_mapped(k1, kEngine, true), "belongs to nobody");
  EXPECT_DEATH(sut.set_mapped(k0, EngineId{}, true), "means none");
  EXPECT_DEATH(static_cast<void>(sut.slab(k2)), "no such slab");
  sut.quarantine_region(kRegion);
  EXPECT_DEATH(sut.quarantine_region(kRegion), "quarantined twice");
}

}  // namespace
}  // namespace kvd::pool
