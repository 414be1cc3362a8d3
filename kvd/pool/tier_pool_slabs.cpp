// Whole slabs: regions, mapping, scrubbing, new memory, and the way from a class back to
// unassigned.
#include <algorithm>

#include "ipc/vocabulary/check.hpp"
#include "kvd/pool/budget.hpp"
#include "kvd/pool/tier_pool.hpp"

namespace kvd::pool {
namespace {

Error refusal(ErrorCode code, std::uint32_t wanted, const SlabSupply& supply) {
  const std::string need = "the region needs " + std::to_string(wanted) + " slabs: ";
  switch (code) {
    case ErrorCode::kWouldBlock:
      return make_error(code,
                        need + "enough are free but not zeroed or renewed yet; ask again shortly");
    case ErrorCode::kQuotaExceeded:
      return make_error(code, need + "the quota leaves room for " + std::to_string(supply.room) +
                                  "; raise the domain's quota or ask for less");
    default:
      return make_error(code, need + std::to_string(supply.held + supply.loose) +
                                  " are free; free memory, enlarge the tier or ask for less");
  }
}

}  // namespace

Result<std::vector<SlabIndex>> TierPool::allocate_region(RegionId region, DomainId domain,
                                                         EngineId owner, Bytes bytes) {
  KVD_CHECK(region && domain, "a region has an id and a domain");
  KVD_CHECK(!regions_.contains(region), "a region id is used twice");
  if (bytes <= Bytes{}) {
    return make_error(ErrorCode::kInvalidArgument, "a region needs a size above zero");
  }
  const Budget budget(book_, shared_);
  const std::uint32_t wanted = budget.slabs_for(bytes);
  const SlabSupply supply = budget.supply_for_region(domain);
  if (const ErrorCode code = judge(wanted, supply); code != ErrorCode::kOk) {
    const std::uint32_t own = supply.held + supply.held_later;
    if (code == ErrorCode::kWouldBlock) {
      renewals_.renew(book_, shared_, domain, wanted - std::min(wanted, own));
    }
    return refusal(code, wanted, supply);
  }
  return regions_.lease(book_, {region, domain, owner}, budget.choose_for_region(domain, wanted));
}

bool lease(TierPool& pool, const RegionLeases::Lease& lease, const Positions& slabs) {
  SlabBook& book = pool.book_;
  const bool are_there = std::all_of(slabs.begin(), slabs.end(), [&](std::uint32_t at) {
    const Slab& slab = book.at(SlabIndex(at));
    return slab.use == SlabUse::kClean && !slab.held() && !slab.lent;
  });
  const SlabSupply supply = Budget(book, pool.shared_).supply_for_region(lease.domain);
  const auto wanted = static_cast<std::uint32_t>(slabs.size());
  if (!are_there || judge(wanted, supply) != ErrorCode::kOk) return false;
  (void)pool.regions_.lease(book, lease, slabs);
  return true;
}

void claim(TierPool& pool, RegionId region, EngineId owner) {
  pool.regions_.claim(pool.book_, region, owner);
}

void renew(TierPool& pool, SlabIndex slab) {
  KVD_CHECK(pool.book_.at(slab).use == SlabUse::kClean && !pool.book_.at(slab).held(),
            "a slab is renewed that somebody has");
  pool.book_.change(slab, [](Slab& to) { to.use = SlabUse::kRenewing; });
}

std::vector<SlabIndex> renew(TierPool& pool, RegionId region) {
  return pool.regions_.renew(pool.book_, region);
}

std::uint32_t TierPool::region_room(DomainId domain) const {
  const SlabSupply supply = Budget(book_, shared_).supply_for_region(domain);
  const std::uint32_t loose = std::min(supply.loose + supply.loose_later, supply.room_later);
  return supply.held + supply.held_later + loose;
}

void TierPool::release_region(RegionId region) { regions_.release(book_, region); }

void TierPool::quarantine_region(RegionId region) { regions_.quarantine(book_, region); }

void TierPool::set_mapped(SlabIndex index, EngineId engine, bool mapped) {
  KVD_CHECK(engine, "engine 0 means none");
  const Slab& slab = book_.at(index);
  const auto found = std::find(slab.mapped_by.begin(), slab.mapped_by.end(), engine);
  if ((found != slab.mapped_by.end()) == mapped) return;
  if (mapped) {
    KVD_CHECK(slab.held(), "a slab that belongs to nobody is mapped");
    book_.change(index, [&](Slab& to) {
      to.mapped_by.push_back(engine);
      to.lent = true;
    });
    return;
  }
  book_.change(index, [&](Slab& from) {
    from.mapped_by.erase(found);
    if (!from.mapped_by.empty() || !unassigned(from.use)) return;
    // Its last engine could write until now, so earlier zeros prove nothing.
    if (from.use == SlabUse::kClean) from.use = SlabUse::kDirty;
    from.written_while_scrubbed = from.use == SlabUse::kScrubbing;
  });
}

bool TierPool::awaited(SlabIndex slab, EngineId engine) const {
  return book_.at(slab).awaited_by == engine;
}

void TierPool::stop_awaiting(EngineId engine) {
  for (std::uint32_t at = book_.begin(); at < book_.end(); ++at) {
    if (awaited(SlabIndex(at), engine)) book_.await(SlabIndex(at), EngineId{});
  }
}

std::vector<SlabIndex> TierPool::take_dirty() {
  std::vector<SlabIndex> taken;
  if (book_.ledger().slabs(SlabUse::kDirty) == 0) return taken;
  for (std::uint32_t at = book_.begin(); at < book_.end(); ++at) {
    const SlabIndex index(at);
    if (book_.at(index).use != SlabUse::kDirty) continue;
    book_.change(index, [](Slab& slab) { slab.use = SlabUse::kScrubbing; });
    taken.push_back(index);
  }
  return taken;
}

void TierPool::slab_scrubbed(SlabIndex index) {
  KVD_CHECK(book_.at(index).use == SlabUse::kScrubbing,
            "a slab was zeroed that was not being scrubbed");
  book_.change(index, [](Slab& slab) {
    slab.use = slab.written_while_scrubbed ? SlabUse::kDirty : SlabUse::kClean;
    slab.written_while_scrubbed = false;
    if (slab.use == SlabUse::kClean && !slab.held() && !slab.lent) slab.domain = DomainId{};
  });
}

void TierPool::retire(SlabIndex index) { book_.retire(index); }

void TierPool::unretire(SlabIndex index) { book_.unretire(index); }

void give_back(TierPool& pool, DomainId domain, std::uint32_t excess) {
  SlabBook& book = pool.book_;
  std::vector<SlabIndex> own;
  for (std::uint32_t at = book.begin(); at < book.end(); ++at) {
    const Slab& slab = book.at(SlabIndex(at));
    if (slab.domain == domain && (slab.retiring || slab.use == SlabUse::kClass))
      own.emplace_back(at);
  }
  std::stable_sort(own.begin(), own.end(), [&](SlabIndex a, SlabIndex b) {
    return book.at(a).slots.used() < book.at(b).slots.used();
  });
  for (std::size_t i = 0; i < own.size(); ++i) {
    i < excess ? book.retire(own[i]) : book.unretire(own[i]);
    const Slab& slab = book.at(own[i]);
    if (unassigned(slab.use) && slab.mapped_by.empty()) book.unretire(own[i]);
  }
}

std::vector<SlabIndex> TierPool::reclaim_empty_slabs(DomainId asking) {
  std::vector<SlabIndex> reclaimed;
  const Ledger& ledger = book_.ledger();
  if (ledger.slabs(SlabUse::kClass) == ledger.of(asking).held_as(SlabUse::kClass)) return reclaimed;
  for (std::uint32_t at = book_.begin(); at < book_.end(); ++at) {
    const SlabIndex index(at);
    const Slab& slab = book_.at(index);
    if (!slab.empty_class() || slab.domain == asking) continue;
    book_.unassign(index);
    reclaimed.push_back(index);
  }
  return reclaimed;
}

void TierPool::renew_for(DomainId domain, Bytes wanted) {
  const DomainSums& own = book_.ledger().of(domain);
  if (wanted <= own.free) return;
  std::uint32_t held = 0;
  for (const SlabUse use : {SlabUse::kClean, SlabUse::kDirty, SlabUse::kScrubbing}) {
    held += own.held_as(use) - own.retiring_as(use);
  }
  const std::uint32_t slabs = Budget(book_, shared_).slabs_for(wanted - own.free);
  renewals_.renew(book_, shared_, domain, slabs - std::min(slabs, held));
}

std::vector<SlabIndex> TierPool::take_renewals() { return renewals_.take(); }

void TierPool::slab_renewed(SlabIndex index) {
  const SlabUse use = book_.at(index).use;
  KVD_CHECK(use == SlabUse::kRenewing || use == SlabUse::kMissing,
            "a slab has new memory that was not renewing");
  book_.change(index, [](Slab& slab) { slab.use = SlabUse::kClean; });
}

}  // namespace kvd::pool
