#include "kvd/core/ledger/region_copies.hpp"

namespace kvd::core {

bool RegionCopies::end(RegionId region) {
  const auto found = open_.find(region);
  if (--found->second.copies > 0) return false;
  const Open last = std::move(found->second);
  open_.erase(found);
  if (!last.released) return false;
  store::release(store_.tiers, region, last.slabs);
  store_.tiers.scrub_slabs();
  return true;
}

void RegionCopies::unmapped(const Region& region, EngineId engine) {
  if (!open_.contains(region.id)) {
    return store_.tiers.end_lease(region.id, engine, region.slabs);
  }
  for (const SlabIndex slab : region.slabs) {
    store_.tiers.mappings().region_unmapped(engine, slab);
  }
  release(region);
}

void RegionCopies::release(const Region& region) {
  pool::TierPool& pool = store_.tiers.hbm().with(region.slabs.front());
  const auto open = open_.find(region.id);
  if (open == open_.end()) return store::release(store_.tiers, region.id, region.slabs);
  open->second.released = true;
  open->second.slabs = region.slabs;
  // The slabs of an engine that died are already quarantined.
  if (pool.slab(region.slabs.front()).use != pool::SlabUse::kQuarantined) {
    pool.quarantine_region(region.id);
  }
}

}  // namespace kvd::core
