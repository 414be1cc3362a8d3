#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kvd/pool/tier_pool.hpp"

namespace kvd::pool {

constexpr DomainId kA{1}, kB{2};
constexpr EngineId kEngine{11}, kOther{12};
constexpr ClassId kSmall{1}, kLarge{2};
constexpr Bytes kSlab{1024};
constexpr std::uint32_t kSmallSlots = 8, kLargeSlots = 4;

/// A pool of slabs of 1 KiB with two classes: 8 small or 4 large slots a slab.
inline TierPool make_pool(std::uint32_t slabs, Quotas quotas = {}) {
  TierPool pool({.tier = Tier::kHbm, .slab_bytes = kSlab, .slabs = slabs}, std::move(quotas));
  EXPECT_TRUE(pool.add_class(kSmall, Bytes(128)).ok());
  EXPECT_TRUE(pool.add_class(kLarge, Bytes(256)).ok());
  return pool;
}

/// Allocates as TierPool does, which must be what it foresaw.
inline SlotGrant allocate(TierPool& pool, const SlotRequest& request) {
  const Outlook foreseen = outlook(pool, request);
  SlotGrant grant = pool.allocate(request);
  const Outlook came = grant.code == ErrorCode::kOk ? Outlook::kNow
                       : grant.to_map.empty()       ? Outlook::kNot
                                                    : Outlook::kOnceMapped;
  EXPECT_EQ(foreseen, came);
  return grant;
}

inline SlotGrant allocate(TierPool& pool, std::uint32_t count, ClassId model_class = kSmall,
                          DomainId domain = kA, const SlabSet* mapped = nullptr) {
  return allocate(pool, {.model_class = model_class,
                         .domain = domain,
                         .owner = kEngine,
                         .count = count,
                         .mapped = mapped});
}

/// The slots of a grant that must succeed.
inline std::vector<SlotId> granted(TierPool& pool, std::uint32_t count,
                                   ClassId model_class = kSmall, DomainId domain = kA) {
  SlotGrant grant = allocate(pool, count, model_class, domain);
  EXPECT_EQ(grant.code, ErrorCode::kOk);
  EXPECT_EQ(grant.slots.size(), count);
  EXPECT_EQ(pool.validate(), "");
  return grant.slots;
}

inline void release_all(TierPool& pool, const std::vector<SlotId>& slots) {
  for (const SlotId slot : slots) pool.release(slot);
}

/// Zeroes everything dirty, as the daemon does between events.
inline void scrub_slabs(TierPool& pool) {
  for (const SlabIndex slab : pool.take_dirty()) pool.slab_scrubbed(slab);
}

/// Gives new memory to everything that is to get it.
inline void renew_slabs(TierPool& pool) {
  for (const SlabIndex slab : pool.take_renewals()) pool.slab_renewed(slab);
}

inline Bytes whole(std::int64_t count) { return kSlab * count; }

}  // namespace kvd::pool
