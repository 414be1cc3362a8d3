// Domains as boundaries: memory that engines were given is nobody else's any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/unit/kvd/pool/pool_fixture.hpp"

namespace kvd::pool {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr SlabIndex k0{0}, k1{1};

SlabUse use(const TierPool& pool, SlabIndex index) { return pool.slab(index).use; }

ErrorCode lease(TierPool& pool, std::uint64_t id, DomainId domain, Bytes bytes) {
  const auto region = pool.allocate_region(RegionId(id), domain, kEngine, bytes);
  if (!region.ok()) return region.error().code;
  for (const SlabIndex slab : *region) pool.set_mapped(slab, kEngine, true);
  return ErrorCode::kOk;
}

/// Releases it, as when its engine frees it or has gone.
void give_back(TierPool& pool, std::uint64_t id) {
  for (const SlabView& slab : pool.slabs()) {
    if (slab.region == RegionId(id)) pool.set_mapped(slab.index, kEngine, false);
  }
  pool.release_region(RegionId(id));
  scrub_slabs(pool);
}

/// All slabs free and zeroed, each known to an engine of domain A.
TierPool pool_of_a(std::uint32_t slabs, Quotas quotas = {}) {
  TierPool pool = make_pool(slabs, std::move(quotas));
  EXPECT_EQ(lease(pool, 1, kA, whole(slabs)), ErrorCode::kOk);
  give_back(pool, 1);
  return pool;
}

TEST(TierPoolRenewal, MemoryThatEnginesKnowGoesToAnotherDomainOnlyOnceItIsNew) {
  TierPool sut = pool_of_a(1);
  EXPECT_EQ(use(sut, k0), SlabUse::kClean);
  EXPECT_EQ(sut.available(kB), Bytes{});
  EXPECT_EQ(lease(sut, 2, kB, kSlab), ErrorCode::kWouldBlock);
  EXPECT_EQ(use(sut, k0), SlabUse::kRenewing);
  EXPECT_EQ(sut.validate(), "");
  EXPECT_THAT(sut.take_renewals(), ElementsAre(k0));
  EXPECT_EQ(lease(sut, 2, kB, kSlab), ErrorCode::kWouldBlock);
  EXPECT_EQ(allocate(sut, 1, kSmall, kA).code, ErrorCode::kWouldBlock);
  EXPECT_THAT(sut.take_renewals(), IsEmpty());
  sut.slab_renewed(k0);
  EXPECT_EQ(sut.slab(k0).domain, DomainId{});
  EXPECT_EQ(lease(sut, 2, kB, kSlab), ErrorCode::kOk);
  EXPECT_EQ(sut.validate(), "");
}

TEST(TierPoolRenewal, ItsOwnDomainGetsItBackAsItIs) {
  TierPool sut = pool_of_a(1);
  EXPECT_EQ(sut.available(kA), kSlab);
  EXPECT_EQ(lease(sut, 2, kA, kSlab), ErrorCode::kOk);
  EXPECT_THAT(sut.take_renewals(), IsEmpty());
}

TEST(TierPoolRenewal, SlotsWaitForNewMemoryTooAndOldBytesNeedNoZeroingFirst) {
  TierPool sut = make_pool(1);
  const auto slots = granted(sut, 1);
  sut.set_mapped(k0, kEngine, true);
  release_all(sut, slots);
  sut.reclaim_empty_slabs();
  sut.set_mapped(k0, kEngine, false);
  EXPECT_EQ(use(sut, k0), SlabUse::kDirty);
  EXPECT_EQ(allocate(sut, 1, kSmall, kB).code, ErrorCode::kWouldBlock);
  EXPECT_THAT(sut.take_dirty(), IsEmpty());
  renew_slabs(sut);
  granted(sut, 1, kSmall, kB);
}

TEST(TierPoolRenewal, MemoryThatNoEngineWasGivenIsOnlyZeroed) {
  TierPool sut = make_pool(1);  // as in DRAM
  release_all(sut, granted(sut, 1));
  sut.reclaim_empty_slabs();
  scrub_slabs(sut);
  granted(sut, 1, kSmall, kB);
  EXPECT_THAT(sut.take_renewals(), IsEmpty());
}

TEST(TierPoolRenewal, NoMoreThanIsLackingIsRenewedHoweverOftenItIsAskedFor) {
  TierPool sut = pool_of_a(4);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(lease(sut, 2, kB, whole(2)), ErrorCode::kWouldBlock);
    EXPECT_EQ(allocate(sut, 1, kSmall, kB).code, ErrorCode::kWouldBlock);
    sut.renew_for(kB, whole(2));
  }
  EXPECT_THAT(sut.take_renewals(), ElementsAre(k0, k1));
  EXPECT_EQ(sut.available(kA), whole(2));
}

TEST(TierPoolRenewal, WhoTakesSlabsTakesThoseItsEnginesKnow) {
  TierPool sut = make_pool(3);
  EXPECT_EQ(lease(sut, 1, kB, whole(1)), ErrorCode::kOk);
  EXPECT_EQ(lease(sut, 2, kA, whole(1)), ErrorCode::kOk);
  give_back(sut, 1);
  give_back(sut, 2);
  EXPECT_EQ(lease(sut, 3, kA, kSlab), ErrorCode::kOk);
  EXPECT_EQ(sut.slab(k1).region, RegionId(3));
  EXPECT_EQ(lease(sut, 4, kB, whole(2)), ErrorCode::kOk);
}

TEST(TierPoolRenewal, AGuaranteeIsKeptInMemoryThatOthersDoNotKnow) {
  TierPool sut = make_pool(4, {{kB, {.guarantee = whole(2)}}});
  EXPECT_EQ(lease(sut, 1, kA, whole(2)), ErrorCode::kOk);
  sut.set_mapped(k0, kEngine, false);
  sut.release_region(RegionId(1));  // dirty: a region of A has to wait for it, or take others
  EXPECT_EQ(lease(sut, 2, kA, whole(2)), ErrorCode::kWouldBlock);
  EXPECT_EQ(lease(sut, 3, kB, whole(2)), ErrorCode::kOk) << "at once";
  EXPECT_EQ(sut.validate(), "");
}

TEST(TierPoolRenewal, WhatADomainIsGuaranteedIsNotRenewedAway) {
  TierPool sut = pool_of_a(3, {{kA, {.guarantee = whole(2)}}});
  EXPECT_EQ(lease(sut, 2, kB, whole(2)), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(lease(sut, 2, kB, whole(1)), ErrorCode::kWouldBlock);
  renew_slabs(sut);
  EXPECT_EQ(lease(sut, 2, kB, whole(1)), ErrorCode::kOk);
  EXPECT_EQ(lease(sut, 3, kA, whole(2)), ErrorCode::kOk) << "at once";
}

// Random leases; KVD_TEST_SEED is not needed, as each run plays the same ones.
TEST(TierPoolRenewal, WhereGuaranteesShareThePoolOutASlabKeepsItsDomain) {
  constexpr std::uint32_t kSlabs = 6;
  TierPool sut = make_pool(kSlabs, {{kA, {.guarantee = whole(4)}}, {kB, {.guarantee = whole(2)}}});
  std::mt19937_64 random(1);
  std::map<SlabIndex, DomainId> of;
  std::vector<std::uint64_t> leased;
  for (std::uint64_t id = 1; id < 2'000; ++id) {
    const DomainId domain = random() % 2 == 0 ? kA : kB;
    if (lease(sut, id, domain, whole(1 + static_cast<std::int64_t>(random() % 4))) ==
        ErrorCode::kOk) {
      leased.push_back(id);
    }
    for (const SlabView& slab : sut.slabs()) {
      if (!slab.domain) continue;
      ASSERT_EQ(of.try_emplace(slab.index, slab.domain).first->second, slab.domain) << id;
    }
    if (leased.empty() || random() % 2 == 0) continue;
    give_back(sut, leased.front());
    leased.erase(leased.begin());
  }
  EXPECT_EQ(of.size(), kSlabs) << "both domains got all of their guarantees";
  EXPECT_THAT(sut.take_renewals(), IsEmpty());
}

/// At the start there was memory only for the first two slabs.
TierPool short_pool(std::uint32_t slabs, Quotas quotas = {}) {
  std::vector<SlabIndex> missing;
  for (std::uint32_t i = 2; i < slabs; ++i) missing.emplace_back(i);
  TierPool pool({Tier::kHbm, kSlab, slabs, {}, missing}, std::move(quotas));
  EXPECT_EQ(pool.stats().missing, whole(slabs - 2));
  EXPECT_EQ(pool.stats().free, whole(2));
  EXPECT_EQ(pool.validate(), "");
  return pool;
}

TEST(TierPoolRenewal, ASlabThatHasNoMemoryYetIsWaitedForAndThenAsAnyOther) {
  TierPool sut = short_pool(3);
  EXPECT_EQ(sut.available(kA), whole(2));
  EXPECT_EQ(lease(sut, 1, kA, whole(3)), ErrorCode::kWouldBlock);
  EXPECT_THAT(sut.take_renewals(), IsEmpty()) << "it is made anyway";
  sut.slab_renewed(SlabIndex(2));
  EXPECT_EQ(sut.stats().missing, Bytes{});
  EXPECT_EQ(lease(sut, 1, kA, whole(3)), ErrorCode::kOk);
  EXPECT_EQ(sut.validate(), "");
}

TEST(TierPoolRenewal, WhatIsMissingIsLentByNoGuarantee) {
  TierPool sut = short_pool(4, {{kA, {whole(2), whole(4)}}});
  EXPECT_EQ(sut.available(kB), Bytes{}) << "both slabs that are there are promised";
  EXPECT_EQ(lease(sut, 1, kB, kSlab), ErrorCode::kWouldBlock);
  EXPECT_EQ(lease(sut, 2, kA, whole(2)), ErrorCode::kOk);
  sut.slab_renewed(SlabIndex(3));
  EXPECT_EQ(lease(sut, 1, kB, kSlab), ErrorCode::kOk);
}

TEST(TierPoolRenewal, IdleMemoryOfOthersIsRenewedThoughSomeIsMissing) {
  TierPool sut = short_pool(3);
  EXPECT_EQ(lease(sut, 1, kA, whole(2)), ErrorCode::kOk);
  give_back(sut, 1);
  EXPECT_EQ(lease(sut, 2, kB, kSlab), ErrorCode::kWouldBlock);
  EXPECT_THAT(sut.take_renewals(), ElementsAre(k0)) << "nobody knows when the missing one comes";
}

}  // namespace
}  // namespace kvd::pool
