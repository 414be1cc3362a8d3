// Cached rows as room: who makes way for whom, how much can be had, and what is lost by it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvd/store/cache/cache.hpp"
#include "tests/unit/kvd/store/cache/cache_fixture.hpp"

namespace kvd::store {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Bytes kTier{4096};  ///< 16 rows of two slots
constexpr Bytes kOneSlab{1024};

/// Rows of domain kA that nobody names any more, in both tiers.
class CacheRoomTest : public CacheTest {
 protected:
  enum class Where : std::uint8_t { kHbm, kBoth };

  /// Rows that a request computed and left; the digests of its chain.
  std::vector<Digest> leave_rows(std::uint32_t count, Where where = Where::kBoth,
                                 DomainId domain = kA, std::uint64_t first = 1000) {
    std::vector<Digest> chain = digests(first, count);
    BlockTable table{kGroups};
    compute(table, count, domain);
    EXPECT_EQ(name(table, chain, 0, space_of(domain.value)), count);
    for (std::uint32_t i = 0; where == Where::kBoth && i < table.size(); ++i) {
      const pool::SlotGrant grant = tiers.take(Tier::kDram, taker(domain), 1);
      EXPECT_EQ(grant.code, ErrorCode::kOk);
      blocks.place(table, i, Tier::kDram, grant.slots.at(0));
      blocks.settle(table, i, Tier::kDram, true);
    }
    truncate(table);
    return chain;
  }
  std::uint32_t found(const std::vector<Digest>& chain, DomainId domain = kA) {
    BlockTable table{kGroups};
    const std::uint32_t count = sut.share(table, space_of(domain.value), chain);
    truncate(table);
    return count;
  }
  /// Ends all zeroing, and has the engines unmap slabs that are to be unmapped.
  void zero() {
    for (std::vector<Scrub> scrubs = ordered<Scrub>(); !scrubs.empty();) {
      for (const Scrub& scrub : scrubs) {
        for (const SlabIndex slab : scrub.slabs) {
          if (scrub.tier == Tier::kHbm) (void)tiers.mappings().unmapped(kEngine, slab);
        }
        EXPECT_TRUE(tiers.scrub_ended(scrub.ticket, true));
      }
      scrubs = ordered<Scrub>();
    }
  }
  void limit(DomainId domain, pool::Quota quota) {
    quotas[domain] = quota;
    EXPECT_TRUE(tiers.set_quotas(Tier::kHbm, quotas).ok());
    EXPECT_TRUE(tiers.set_quotas(Tier::kDram, quotas).ok());
  }
  void give_back(Tier tier, const pool::SlotGrant& grant) {
    EXPECT_EQ(grant.code, ErrorCode::kOk);
    tiers.free(tier, grant.slots);
  }
};

TEST_F(CacheRoomTest, WhatIsCachedIsAsGoodAsFree) {
  EXPECT_EQ(sut.available(kA, Tier::kHbm), kTier);
  const auto chain = leave_rows(3);
  EXPECT_EQ(sut.available(kA, Tier::kHbm), kTier);
  EXPECT_EQ(sut.available(kA, Tier::kDram), kTier);
  BlockTable table{kGroups};
  EXPECT_EQ(sut.share(table, space_of(1), chain), 3u);
  EXPECT_EQ(sut.available(kA, Tier::kHbm), kTier - kRow * 3) << "somebody runs on it";
  truncate(table);
}

TEST_F(CacheRoomTest, RowsMakeWayAsFarAsAreNeeded) {
  const auto chain = leave_rows(16);
  EXPECT_EQ(tiers.pool(Tier::kHbm).available(kA), Bytes(0));
  give_back(Tier::kHbm, sut.take(Tier::kHbm, taker(), 5));
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), kRow * 13) << "three rows of two slots";
  EXPECT_EQ(sut.evictable(kA, Tier::kDram), kRow * 16) << "its copies are nobody's need";
  EXPECT_EQ(sut.evicted(Tier::kHbm), 3 * 256u);
  EXPECT_EQ(sut.evicted(Tier::kDram), 0u);
  EXPECT_EQ(found(chain), 16u) << "nothing is lost";
}

TEST_F(CacheRoomTest, NobodyMakesWayWhileThereIsRoom) {
  leave_rows(4);
  give_back(Tier::kDram, sut.take(Tier::kDram, taker(), 24));
  EXPECT_EQ(sut.evictable(kA, Tier::kDram), kRow * 4);
  EXPECT_EQ(sut.evicted(Tier::kDram), 0u);
}

TEST_F(CacheRoomTest, WhatIsInOneTierAloneIsLostWithItsPlace) {
  const auto chain = leave_rows(16, Where::kHbm);
  give_back(Tier::kHbm, sut.take(Tier::kHbm, taker(), 4));
  EXPECT_EQ(found(chain), 14u) << "the last two blocks of the chain";
}

TEST_F(CacheRoomTest, MoreThanThereIsMakesAllLeaveAndFails) {
  const auto chain = leave_rows(8, Where::kHbm);
  EXPECT_EQ(sut.take(Tier::kHbm, taker(), 33).code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), Bytes(0));
  EXPECT_EQ(found(chain), 0u);
}

TEST_F(CacheRoomTest, ASlabThatIsBeingMappedIsWaitedForAndNothingMakesWay) {
  leave_rows(8);
  const pool::SlotGrant grant = sut.take(Tier::kHbm, taker(), 4);
  EXPECT_EQ(grant.code, ErrorCode::kWouldBlock);
  EXPECT_THAT(grant.to_map, SizeIs(1));
  EXPECT_FALSE(sut.make_way(Tier::kHbm, taker(), kRow, ErrorCode::kWouldBlock));
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), kRow * 8);
}

TEST_F(CacheRoomTest, AtItsMaximumADomainsOwnRowsMakeWay) {
  limit(kA, {.guarantee = {}, .maximum = kOneSlab * 2});
  leave_rows(8);
  leave_rows(4, Where::kBoth, kB);
  EXPECT_EQ(sut.available(kA, Tier::kHbm), kOneSlab * 2);
  give_back(Tier::kHbm, sut.take(Tier::kHbm, taker(), 2));
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), kRow * 7);
  EXPECT_EQ(sut.take(Tier::kHbm, taker(), 17).code, ErrorCode::kQuotaExceeded);
  EXPECT_EQ(sut.evictable(kB, Tier::kHbm), kRow * 4) << "the others' room is of no help";
}

TEST_F(CacheRoomTest, WhatOthersHaveCachedBeyondTheirGuaranteeCanBeHad) {
  leave_rows(16);
  EXPECT_EQ(sut.available(kB, Tier::kDram), kTier);
  limit(kA, {.guarantee = kOneSlab * 3, .maximum = kTier});
  EXPECT_EQ(sut.available(kB, Tier::kDram), kOneSlab);
  limit(kB, {.guarantee = {}, .maximum = Bytes(512)});
  EXPECT_EQ(sut.available(kB, Tier::kDram), Bytes(0)) << "it may have no slab";
}

TEST_F(CacheRoomTest, OthersMakeWayAndTheirSlabsAreZeroed) {
  leave_rows(16);
  EXPECT_EQ(sut.make_others_room(kB, Tier::kDram, kRow * 4), kRow * 4);
  EXPECT_EQ(sut.evictable(kA, Tier::kDram), kRow * 12);
  EXPECT_NE(sut.take(Tier::kDram, taker(kB), 2).code, ErrorCode::kOk) << "not before it is zeroed";
  zero();
  give_back(Tier::kDram, sut.take(Tier::kDram, taker(kB), 2));
}

TEST_F(CacheRoomTest, NobodyMakesWayForItself) {
  leave_rows(16);
  EXPECT_EQ(sut.make_others_room(kA, Tier::kDram, kRow), Bytes(0));
  EXPECT_EQ(sut.evictable(kA, Tier::kDram), kRow * 16);
}

TEST_F(CacheRoomTest, WhatADomainIsGuaranteedIsNotLostToOthers) {
  limit(kA, {.guarantee = kOneSlab * 2, .maximum = kTier});
  leave_rows(16);
  EXPECT_EQ(sut.make_others_room(kB, Tier::kDram, kTier), kOneSlab * 2);
  EXPECT_EQ(sut.evictable(kA, Tier::kDram), kOneSlab * 2);
}

TEST_F(CacheRoomTest, ATakeOfAnotherDomainLeavesWhatIsGuaranteed) {
  limit(kA, {.guarantee = kOneSlab * 2, .maximum = kTier});
  leave_rows(16);
  (void)sut.take(Tier::kDram, taker(kB), 2);
  EXPECT_GE(sut.evictable(kA, Tier::kDram), kOneSlab * 2);
}

TEST_F(CacheRoomTest, OnlyATakeLooksForSlabsThatOthersLeftEmpty) {
  tiers.free(Tier::kDram, tiers.take(Tier::kDram, taker(kB), 32).slots);
  EXPECT_NE(sut.try_take(Tier::kDram, taker(), 2).code, ErrorCode::kOk);
  EXPECT_THAT(ordered<Scrub>(), IsEmpty());
  EXPECT_NE(sut.take(Tier::kDram, taker(), 2).code, ErrorCode::kOk);
  const auto scrubs = ordered<Scrub>();
  ASSERT_THAT(scrubs, SizeIs(1));
  EXPECT_TRUE(tiers.scrub_ended(scrubs[0].ticket, true));
  give_back(Tier::kDram, sut.take(Tier::kDram, taker(), 2));
}

TEST_F(CacheRoomTest, SumsWhatAllDomainsHaveCached) {
  leave_rows(3, Where::kHbm);
  leave_rows(2, Where::kBoth, kB);
  EXPECT_EQ(sut.cached(Tier::kHbm), kRow * 5);
  EXPECT_EQ(sut.cached(Tier::kDram), kRow * 2);
}

TEST_F(CacheRoomTest, ClearedIsAllThatNobodyNames) {
  const auto chain = leave_rows(4);
  leave_rows(2, Where::kBoth, kB);
  BlockTable table{kGroups};
  EXPECT_EQ(sut.share(table, space_of(1), digests(1000, 2)), 2u);
  sut.clear();
  EXPECT_EQ(sut.cached(Tier::kHbm) + sut.cached(Tier::kDram), Bytes(0));
  EXPECT_EQ(table.in(Tier::kHbm), 4);
  EXPECT_EQ(fault(), "");
  truncate(table);
  EXPECT_EQ(found(chain), 2u) << "what somebody named then";
}

TEST_F(CacheRoomTest, OneDomainsPartIsClearedInParts) {
  leave_rows(4, Where::kHbm);
  leave_rows(2, Where::kHbm, kB);
  EXPECT_FALSE(sut.clear(3, kA));
  EXPECT_EQ(sut.cached(Tier::kHbm), kRow * 3);
  EXPECT_TRUE(sut.clear(3, kA));
  EXPECT_EQ(sut.cached(Tier::kHbm), kRow * 2) << "those of the other";
  EXPECT_EQ(fault(), "");
}

TEST_F(CacheRoomTest, WhereHbmIsToBeLeftDramAloneKeepsRows) {
  BlockTable table{kGroups};
  compute(table, 2);
  EXPECT_EQ(name(table, prompt), 2u);
  copy(table, 0);
  const SlotsByTier slots = sut.truncate(table, 0, true);
  EXPECT_THAT(slots[0], SizeIs(4)) << "somebody may still write there";
  EXPECT_THAT(slots[1], IsEmpty());
  tiers.free(Tier::kHbm, slots[0]);
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm), Bytes(0));
  EXPECT_EQ(sut.evictable(kA, Tier::kDram), kRow);
  EXPECT_EQ(found(prompt), 1u) << "what had no copy is lost";
}

TEST_F(CacheRoomTest, ABlockAfterOneWithoutAKeyGetsNone) {
  BlockTable table{kGroups};
  compute(table, 2);
  const auto named = sut.name(table, {space_of(1), 1, prompt[1], kSaved});
  ASSERT_TRUE(named.ok());
  EXPECT_FALSE(*named);
  EXPECT_EQ(name(table, prompt), 2u) << "in their order they get theirs";
  truncate(table);
}

TEST_F(CacheRoomTest, ADigestThatSaysNothingOfWhatIsBeforeIsRefused) {
  leave_rows(2);
  BlockTable table{kGroups};
  compute(table, 1);
  const auto named = sut.name(table, {space_of(1), 0, digest(1001), kSaved});
  ASSERT_FALSE(named.ok());
  EXPECT_EQ(named.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(blocks.block(table[0]).row);
  EXPECT_EQ(fault(), "");
  truncate(table);
}

TEST_F(CacheRoomTest, OfADeviceOnlyWhatIsThereMakesWay) {
  Taker there = taker();
  there.device = kOtherDevice;
  leave_rows(2, Where::kHbm);
  BlockTable far{kGroups};
  blocks.extend(far, there, kGroups);
  const std::vector<SlotId> slots = taken(kGroups, there);
  for (std::uint32_t i = 0; i < kGroups; ++i) {
    blocks.place(far, i, Tier::kHbm, slots[i]);
    blocks.settle(far, i, Tier::kHbm, true);
  }
  EXPECT_EQ(name(far, prompt), 1u);
  truncate(far);
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm, kOtherDevice), kRow);
  EXPECT_EQ(sut.make_room(kA, Tier::kHbm, kTier, kOtherDevice), kRow);
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm, kDevice), kRow * 2) << "it was passed over, and stays";
  EXPECT_EQ(fault(), "") << "and nobody has a lease on it";
  EXPECT_EQ(found(prompt), 0u);
}

TEST_F(CacheRoomTest, OfSeveralDevicesRowsOfEachMakeWay) {
  leave_rows(16, Where::kHbm);
  tiers.free(Tier::kHbm, [&] {
    Taker there = taker();
    there.device = kOtherDevice;
    return taken(4, there);
  }());
  const DeviceSlots wanted[] = {{kDevice, 4}, {kOtherDevice, 4}};
  give_back(Tier::kHbm, sut.take(taker(), wanted));
  EXPECT_EQ(sut.evictable(kA, Tier::kHbm, kDevice), kRow * 14);
}

}  // namespace
}  // namespace kvd::store
