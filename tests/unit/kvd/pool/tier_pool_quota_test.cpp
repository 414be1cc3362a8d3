#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/pool/pool_fixture.hpp"

namespace kvd::pool {
namespace {

ErrorCode lease(TierPool& pool, std::uint64_t id, DomainId domain, Bytes bytes) {
  const auto region = pool.allocate_region(RegionId(id), domain, kEngine, bytes);
  return region.ok() ? ErrorCode::kOk : region.error().code;
}

TEST(TierPoolQuota, ASlabCountsWholeTowardsTheMaximum) {
  TierPool sut = make_pool(4, {{kA, {.maximum = whole(2)}}});
  EXPECT_EQ(sut.available(kA), whole(2));
  granted(sut, 1);
  EXPECT_EQ(sut.used(kA), kSlab);
  EXPECT_EQ(sut.available(kA), whole(2) - Bytes(128));
  granted(sut, 2 * kSmallSlots - 1);
  EXPECT_EQ(sut.available(kA), Bytes{});
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kQuotaExceeded);
  EXPECT_EQ(lease(sut, 1, kA, kSlab), ErrorCode::kQuotaExceeded);
}

TEST(TierPoolQuota, AMaximumBelowOneSlabGrantsNothing) {
  TierPool sut = make_pool(1, {{kA, {.maximum = kSlab - Bytes(1)}}});
  EXPECT_EQ(sut.available(kA), Bytes{});
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kQuotaExceeded);
}

TEST(TierPoolQuota, AGuaranteeIsNeverLent) {
  TierPool sut = make_pool(3, {{kB, {.guarantee = whole(2)}}});
  EXPECT_EQ(sut.available(kA), kSlab);
  EXPECT_EQ(sut.available(kB), whole(3));
  granted(sut, kSmallSlots);
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kQuotaExceeded);
  EXPECT_EQ(sut.available(kB), whole(2));
  granted(sut, 2 * kSmallSlots, kSmall, kB);
}

TEST(TierPoolQuota, ADomainBorrowsWhatNobodyIsGuaranteed) {
  TierPool sut = make_pool(4, {{kA, {.guarantee = whole(1)}}, {kB, {.guarantee = whole(1)}}});
  EXPECT_EQ(sut.available(kA), whole(3));
  granted(sut, 3 * kSmallSlots);
  EXPECT_EQ(sut.available(kB), whole(1));
  EXPECT_EQ(lease(sut, 1, kB, whole(1)), ErrorCode::kOk);
  EXPECT_EQ(lease(sut, 2, kB, whole(1)), ErrorCode::kOutOfMemory);
}

TEST(TierPoolQuota, WithoutFreeMemoryTheAnswerIsOutOfMemory) {
  TierPool sut = make_pool(2, {{kA, {.maximum = whole(1)}}});
  granted(sut, kSmallSlots);
  granted(sut, kSmallSlots, kSmall, kB);
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kOutOfMemory);
}

TEST(TierPoolQuota, DirtyMemoryIsFreeMemoryToo) {
  TierPool sut = make_pool(2, {{kA, {.maximum = whole(1)}}});
  granted(sut, kSmallSlots);
  release_all(sut, granted(sut, 1, kSmall, kB));
  sut.reclaim_empty_slabs();
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kQuotaExceeded);
}

TEST(TierPoolQuota, AClassChangeAndAHeldSlabCostNothing) {
  TierPool sut = make_pool(2, {{kA, {.maximum = whole(1)}}});
  auto slots = granted(sut, kSmallSlots, kSmall);
  sut.set_mapped(SlabIndex(0), kEngine, true);
  release_all(sut, slots);
  slots = granted(sut, kLargeSlots, kLarge);
  release_all(sut, slots);
  sut.reclaim_empty_slabs();
  EXPECT_EQ(sut.available(kA), whole(1));
  granted(sut, kSmallSlots, kSmall);
}

TEST(TierPoolQuota, AnEmptySlabCountsWholeWhateverItsClassLeavesOver) {
  constexpr ClassId kOdd{3};
  TierPool sut = make_pool(2);
  ASSERT_TRUE(sut.add_class(kOdd, Bytes(300)).ok());
  const auto slots = granted(sut, 4, kOdd);
  EXPECT_EQ(sut.available(kA), 2 * Bytes(300));
  sut.release(slots.back());
  EXPECT_EQ(sut.available(kA), whole(1)) << "of the other slab all is in use";
  release_all(sut, {slots.begin(), slots.end() - 1});
  EXPECT_EQ(sut.available(kA), whole(2));
  EXPECT_EQ(granted(sut, 2 * kSmallSlots).size(), 2 * kSmallSlots) << "it does change class";
}

TEST(TierPoolQuota, AMappedSlabIsBorrowedUntilItIsUnmapped) {
  TierPool sut = make_pool(2, {{kB, {.guarantee = whole(1)}}});
  const auto slots = granted(sut, 1);
  sut.set_mapped(SlabIndex(0), kEngine, true);
  release_all(sut, slots);
  sut.reclaim_empty_slabs();
  EXPECT_EQ(sut.available(kB), whole(1));
  sut.set_mapped(SlabIndex(0), kEngine, false);
  scrub_slabs(sut);
  EXPECT_EQ(sut.available(kB), whole(1)) << "it gets new memory first";
  sut.renew_for(kB, whole(2));
  renew_slabs(sut);
  EXPECT_EQ(sut.available(kB), whole(2));
}

TEST(TierPoolQuota, ARegionWaitsForTheQuotaAQuarantineHolds) {
  TierPool sut = make_pool(2, {{kA, {.maximum = whole(1)}}});
  ASSERT_EQ(lease(sut, 1, kA, kSlab), ErrorCode::kOk);
  EXPECT_EQ(lease(sut, 2, kA, kSlab), ErrorCode::kQuotaExceeded);
  sut.quarantine_region(RegionId(1));
  EXPECT_EQ(lease(sut, 2, kA, kSlab), ErrorCode::kWouldBlock);
  sut.release_region(RegionId(1));
  EXPECT_EQ(lease(sut, 2, kA, kSlab), ErrorCode::kOk);
}

TEST(TierPoolQuota, NewQuotasApplyAtOnceAndTakeNothingAway) {
  TierPool sut = make_pool(3);
  granted(sut, 2 * kSmallSlots);
  ASSERT_TRUE(sut.set_quotas({{kA, {.maximum = whole(1)}}, {kB, {.guarantee = whole(2)}}}).ok());
  EXPECT_EQ(sut.used(kA), whole(2));
  EXPECT_EQ(sut.available(kA), Bytes{});
  EXPECT_EQ(allocate(sut, 1).code, ErrorCode::kQuotaExceeded);
  EXPECT_EQ(sut.available(kB), whole(1));
  EXPECT_EQ(sut.validate(), "");
}

TEST(TierPoolQuota, QuotasBeyondTheCapacityAreRefusedAndTheOldStay) {
  TierPool sut = make_pool(2, {{kA, {.maximum = whole(1)}}});
  EXPECT_EQ(sut.set_quotas({{kB, {.guarantee = whole(3)}}}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(sut.available(kA), whole(1));
}

TEST(TierPoolQuota, SlabsAreWantedOfOtherClassesAndOfDomainsBeyondTheirGuarantee) {
  TierPool sut = make_pool(5, {{kB, {.guarantee = whole(1)}}});
  const auto small = granted(sut, kSmallSlots + 2);
  (void)granted(sut, 1, kLarge);
  (void)granted(sut, 1, kSmall, kB);
  EXPECT_THAT(sut.wanted_if_empty(kLarge, kA),
              testing::ElementsAre(small.back().slab(), small[0].slab()))
      << "emptiest first; B holds no more than its guarantee";
  const auto lent = granted(sut, 1, kLarge, kB);
  EXPECT_THAT(sut.wanted_if_empty(kLarge, kA), testing::SizeIs(4)) << "one of B's two";
  release_all(sut, lent);
  EXPECT_THAT(sut.wanted_if_empty(kLarge, kA), testing::SizeIs(3))
      << "an empty one need not be emptied";
  ASSERT_TRUE(sut.set_quotas({{kA, {.maximum = whole(3)}}}).ok());
  EXPECT_THAT(sut.wanted_if_empty(kLarge, kA), testing::SizeIs(2)) << "A may hold no more";
}

}  // namespace
}  // namespace kvd::pool
