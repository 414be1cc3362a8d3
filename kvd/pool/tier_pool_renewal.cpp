// Which domain's engines know a slab's memory, and when a slab gets new memory.
#include <algorithm>

#include "ipc/vocabulary/check.hpp"
#include "kvd/pool/tier_pool.hpp"

namespace kvd::pool {

// A domain's own are those it holds and those its engines were given before. What its guarantee
// exceeds them by is kept for it among the slabs that no engine knows, so it never waits for memory
// to be made.
std::uint32_t TierPool::fresh_room(DomainId domain) const {
  const DomainSums all = ledger_.total();
  const std::uint32_t fresh = all.loose_slabs() - all.lent_slabs();
  std::uint64_t kept = 0;
  for (const auto& [other, quota] : quotas_) {
    if (other == domain) continue;
    const DomainSums sums = ledger_.of(other);
    const std::uint32_t guaranteed = guaranteed_slabs(quota, capacity());
    kept += guaranteed - std::min(guaranteed, sums.held_slabs() + sums.lent_slabs());
  }
  return fresh - static_cast<std::uint32_t>(std::min<std::uint64_t>(fresh, kept));
}

std::uint32_t TierPool::loose_now(DomainId domain, bool dirty_too) const {
  const DomainSums own = ledger_.of(domain);
  std::uint32_t lent = own.lent_as(SlabUse::kClean);
  std::uint32_t fresh = ledger_.of(DomainId{}).loose_as(SlabUse::kClean);
  if (dirty_too) {
    lent += own.lent_as(SlabUse::kDirty);
    fresh += own.loose_as(SlabUse::kDirty) - own.lent_as(SlabUse::kDirty);
  }
  return lent + std::min(fresh, fresh_room(domain));
}

bool TierPool::renewable(const Slab& slab, DomainId domain) const {
  const bool idle = slab.use == SlabUse::kClean || slab.use == SlabUse::kDirty;
  if (!idle || slab.held() || !slab.lent || slab.domain == domain) return false;
  const DomainSums owner = ledger_.of(slab.domain);
  const auto quota = quotas_.find(slab.domain);
  const std::uint32_t guaranteed =
      quota == quotas_.end() ? 0 : guaranteed_slabs(quota->second, capacity());
  return owner.held_slabs() + owner.lent_slabs() > std::max(owner.held_slabs(), guaranteed);
}

void TierPool::renew_slabs(DomainId domain, std::uint32_t wanted) {
  wanted = std::min(wanted, room(domain));
  std::uint32_t coming = ledger_.of(domain).lent_slabs() + fresh_room(domain);
  for (std::uint32_t position = 0; position < slabs_.size() && coming < wanted; ++position) {
    if (!renewable(slabs_[position], domain)) continue;
    change(slabs_[position], [](Slab& slab) {
      slab.use = SlabUse::kRenewing;
      slab.domain = DomainId{};
      slab.lent = false;
    });
    renewals_.emplace_back(position);
    ++coming;
  }
}

void TierPool::renew_for(DomainId domain, Bytes wanted) {
  const DomainSums own = ledger_.of(domain);
  if (wanted <= own.free) return;
  std::uint32_t held = 0;
  for (const SlabUse use : {SlabUse::kClean, SlabUse::kDirty, SlabUse::kScrubbing}) {
    held += own.held_as(use) - own.retiring_as(use);
  }
  const std::uint32_t slabs = slabs_for(wanted - own.free);
  renew_slabs(domain, slabs - std::min(slabs, held));
}

std::vector<SlabIndex> TierPool::take_renewals() { return std::exchange(renewals_, {}); }

void TierPool::slab_renewed(SlabIndex index) {
  KVD_CHECK(at(index).use == SlabUse::kRenewing, "a slab has new memory that was not renewing");
  change(at(index), [](Slab& slab) { slab.use = SlabUse::kClean; });
}

}  // namespace kvd::pool
