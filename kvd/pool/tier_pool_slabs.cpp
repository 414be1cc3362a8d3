// Whole slabs: regions, mapping, scrubbing, the way from a class back to unassigned.
#include <algorithm>

#include "ipc/vocabulary/check.hpp"
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

void TierPool::unlist(std::uint32_t position) {
  const Slab& slab = slabs_[position];
  if (slab.use != SlabUse::kClass || slab.retiring) return;
  const auto group = room_.find({slab.model_class, slab.domain});
  if (group == room_.end()) return;
  group->second.erase({slab.slots.free(), position});
  if (group->second.empty()) room_.erase(group);  // domains come and go
}

void TierPool::assign(std::uint32_t position, ClassId model_class, DomainId domain) {
  const Class& added = class_of(model_class);
  unlist(position);
  change(slabs_[position], [&](Slab& slab) {
    slab.use = SlabUse::kClass;
    slab.model_class = model_class;
    slab.domain = domain;
    slab.slot_bytes = added.slot_bytes;
    slab.slack = config_.slab_bytes - added.slot_bytes * std::int64_t{added.slots_per_slab};
    slab.slots = SlotTable(added.slots_per_slab);
  });
  relist(position, 0);
}

void TierPool::unassign(std::uint32_t position) {
  Slab& slab = slabs_[position];
  unlist(position);
  change(slab, [](Slab& freed) {
    freed.use = SlabUse::kDirty;
    freed.model_class = ClassId{};
    freed.region = RegionId{};
    freed.owner = freed.awaited_by = EngineId{};
    freed.slot_bytes = freed.slack = Bytes{};
    freed.slots = SlotTable{};
  });
}

Result<std::vector<SlabIndex>> TierPool::allocate_region(RegionId region, DomainId domain,
                                                         EngineId owner, Bytes bytes) {
  KVD_CHECK(region && domain, "a region has an id and a domain");
  KVD_CHECK(!regions_.contains(region), "a region id is used twice");
  if (bytes <= Bytes{}) {
    return make_error(ErrorCode::kInvalidArgument, "a region needs a size above zero");
  }
  const std::uint32_t wanted = slabs_for(bytes);
  const SlabSupply supply = supply_for_region(domain);
  if (const ErrorCode code = judge(wanted, supply); code != ErrorCode::kOk) {
    const std::uint32_t own = supply.held + supply.held_later;
    if (code == ErrorCode::kWouldBlock) renew_slabs(domain, wanted - std::min(wanted, own));
    return refusal(code, wanted, supply);
  }
  std::vector<SlabIndex>& leased = regions_[region];
  for (const std::uint32_t position : choose_for_region(domain, wanted)) {
    change(slabs_[position], [&](Slab& slab) {
      slab.use = SlabUse::kRegion;
      slab.retiring = false;
      slab.domain = domain;
      slab.region = region;
      slab.owner = owner;
    });
    leased.emplace_back(position);
  }
  return leased;
}

std::uint32_t TierPool::slabs_for(Bytes bytes) const {
  const std::int64_t slabs =
      bytes / config_.slab_bytes + (bytes.value % config_.slab_bytes.value != 0);
  return static_cast<std::uint32_t>(std::min<std::int64_t>(slabs, UINT32_MAX));
}

std::uint32_t TierPool::region_shortage(DomainId domain, Bytes bytes) const {
  const SlabSupply supply = supply_for_region(domain);
  const std::uint32_t loose = std::min(supply.loose + supply.loose_later, supply.room_later);
  const std::uint32_t coming = supply.held + supply.held_later + loose;
  const std::uint32_t wanted = slabs_for(bytes);
  return wanted - std::min(wanted, coming);
}

SlabSupply TierPool::supply_for_region(DomainId domain) const {
  const DomainSums own = ledger_.of(domain);
  const DomainSums all = ledger_.total();
  HeldSlabs held_later = ledger_.held();
  for (auto& [other, count] : held_later) count -= ledger_.of(other).held_as(SlabUse::kQuarantined);
  SlabSupply supply;
  supply.held = own.held_as(SlabUse::kClean);
  supply.loose = loose_now(domain, false);
  supply.held_later = own.held_as(SlabUse::kDirty) + own.held_as(SlabUse::kScrubbing) +
                      own.retiring_as(SlabUse::kClass);
  supply.loose_later = all.loose_slabs() - supply.loose + all.held_as(SlabUse::kQuarantined);
  supply.room = room(domain);
  supply.room_later = room_slabs(quotas_, held_later, domain, capacity());
  return supply;
}

// Clean slabs the domain holds already cost no quota and go first, of these the ones kept for a
// region; then those its engines know already. Precondition: judge said Ok.
TierPool::Positions TierPool::choose_for_region(DomainId domain, std::uint32_t wanted) const {
  Positions chosen, held, lent, fresh;
  for (std::uint32_t position = 0; position < slabs_.size(); ++position) {
    const Slab& slab = slabs_[position];
    if (slab.use != SlabUse::kClean) continue;
    if (!slab.held() && !slab.domain) fresh.push_back(position);
    if (slab.domain != domain) continue;
    (slab.retiring ? chosen : slab.held() ? held : lent).push_back(position);
  }
  for (const Positions* more : {&held, &lent, &fresh}) {
    chosen.insert(chosen.end(), more->begin(), more->end());
  }
  chosen.resize(wanted);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

void TierPool::release_region(RegionId region) {
  const auto found = regions_.find(region);
  KVD_CHECK(found != regions_.end(), "a region is released that does not exist");
  for (const SlabIndex index : found->second) unassign(index.value);
  regions_.erase(found);
}

void TierPool::quarantine_region(RegionId region) {
  const auto found = regions_.find(region);
  KVD_CHECK(found != regions_.end(), "a region is quarantined that does not exist");
  for (const SlabIndex index : found->second) {
    KVD_CHECK(at(index).use == SlabUse::kRegion, "a region is quarantined twice");
    change(at(index), [](Slab& slab) { slab.use = SlabUse::kQuarantined; });
  }
}

void TierPool::set_mapped(SlabIndex index, EngineId engine, bool mapped) {
  KVD_CHECK(engine, "engine 0 means none");
  Slab& slab = at(index);
  const auto found = std::find(slab.mapped_by.begin(), slab.mapped_by.end(), engine);
  if ((found != slab.mapped_by.end()) == mapped) return;
  if (mapped) {
    KVD_CHECK(slab.held(), "a slab that belongs to nobody is mapped");
    change(slab, [&](Slab& to) {
      to.mapped_by.push_back(engine);
      to.lent = true;
    });
    return;
  }
  change(slab, [&](Slab& from) {
    from.mapped_by.erase(found);
    if (!from.mapped_by.empty() || !unassigned(from.use)) return;
    // Its last engine could write until now, so zeros written before prove nothing.
    if (from.use == SlabUse::kClean) from.use = SlabUse::kDirty;
    from.written_while_scrubbed = from.use == SlabUse::kScrubbing;
  });
}

bool TierPool::awaited(SlabIndex slab, EngineId engine) const {
  return at(slab).awaited_by == engine;
}

void TierPool::stop_awaiting(EngineId engine) {
  for (Slab& slab : slabs_) {
    if (slab.awaited_by == engine) slab.awaited_by = EngineId{};
  }
}

std::vector<SlabIndex> TierPool::take_dirty() {
  std::vector<SlabIndex> taken;
  for (std::uint32_t position = 0; position < slabs_.size(); ++position) {
    if (slabs_[position].use != SlabUse::kDirty) continue;
    change(slabs_[position], [](Slab& slab) { slab.use = SlabUse::kScrubbing; });
    taken.emplace_back(position);
  }
  return taken;
}

void TierPool::slab_scrubbed(SlabIndex index) {
  KVD_CHECK(at(index).use == SlabUse::kScrubbing, "a slab was zeroed that was not being scrubbed");
  change(at(index), [](Slab& slab) {
    slab.use = slab.written_while_scrubbed ? SlabUse::kDirty : SlabUse::kClean;
    slab.written_while_scrubbed = false;
    if (slab.use == SlabUse::kClean && !slab.held() && !slab.lent) slab.domain = DomainId{};
  });
}

void TierPool::retire(SlabIndex index) {
  Slab& slab = at(index);
  if (slab.retiring) return;
  KVD_CHECK(slab.use == SlabUse::kClass, "a slab retires that grants no slots");
  unlist(index.value);
  change(slab, [](Slab& kept) { kept.retiring = true; });
  if (slab.slots.used() == 0) unassign(index.value);
}

void TierPool::unretire(SlabIndex index) {
  Slab& slab = at(index);
  if (!slab.retiring) return;
  change(slab, [](Slab& freed) {
    freed.retiring = false;
    if (freed.use == SlabUse::kClean && !freed.held() && !freed.lent) freed.domain = DomainId{};
  });
  if (slab.use == SlabUse::kClass) relist(index.value, 0);
}

std::vector<SlabIndex> TierPool::reclaim_empty_slabs(DomainId asking) {
  std::vector<SlabIndex> reclaimed;
  for (std::uint32_t position = 0; position < slabs_.size(); ++position) {
    if (!slabs_[position].empty_class() || slabs_[position].domain == asking) continue;
    unassign(position);
    reclaimed.emplace_back(position);
  }
  return reclaimed;
}

}  // namespace kvd::pool
