#include "tests/unit/kvd/pool/reference_pool.hpp"

#include <algorithm>

namespace kvd::pool {
namespace {

bool is_unassigned(SlabUse use) {
  return use == SlabUse::kClean || use == SlabUse::kDirty || use == SlabUse::kScrubbing ||
         use == SlabUse::kRenewing;
}

bool reachable(const SlotRequest& request, std::size_t position) {
  return request.mapped == nullptr ||
         (position < request.mapped->size() && (*request.mapped)[position]);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::string code_text(ErrorCode got, ErrorCode wanted) {
  return "answered " + std::string(name(got)) + " instead of " + std::string(name(wanted));
}

}  // namespace

ReferencePool::ReferencePool(std::uint32_t slabs, Bytes slab_bytes, Quotas quotas,
                             std::map<ClassId, Bytes> classes)
    : slab_bytes_(slab_bytes),
      quotas_(std::move(quotas)),
      classes_(std::move(classes)),
      slabs_(slabs) {}

bool ReferencePool::held(const Entry& slab) {
  return !is_unassigned(slab.use) || slab.retiring || !slab.mapped_by.empty();
}

std::uint32_t ReferencePool::free_slots(const Entry& slab) {
  return static_cast<std::uint32_t>(
      std::count_if(slab.slots.begin(), slab.slots.end(),
                    [](const Slot& slot) { return slot.state == SlotState::kFree; }));
}

std::int64_t ReferencePool::count_held(DomainId domain, bool quarantined_too) const {
  return std::count_if(slabs_.begin(), slabs_.end(), [&](const Entry& slab) {
    const bool counts = quarantined_too || slab.use != SlabUse::kQuarantined;
    return held(slab) && counts && slab.domain == domain;
  });
}

std::int64_t ReferencePool::room(DomainId domain, bool quarantined_too) const {
  std::set<DomainId> others;
  for (const auto& [other, quota] : quotas_) others.insert(other);
  for (const Entry& slab : slabs_) {
    if (slab.domain) others.insert(slab.domain);
  }
  others.erase(domain);
  auto rest = static_cast<std::int64_t>(slabs_.size());
  for (const DomainId other : others) {
    const auto quota = quotas_.find(other);
    const std::int64_t guaranteed =
        quota == quotas_.end() ? 0 : ceil_div(quota->second.guarantee.value, slab_bytes_.value);
    rest -= std::max(count_held(other, quarantined_too), guaranteed);
  }
  if (const auto own = quotas_.find(domain); own != quotas_.end()) {
    rest = std::min(rest, own->second.maximum / slab_bytes_);
  }
  return std::max<std::int64_t>(0, rest - count_held(domain, quarantined_too));
}

std::int64_t ReferencePool::guaranteed(DomainId domain) const {
  const auto quota = quotas_.find(domain);
  return quota == quotas_.end() ? 0 : ceil_div(quota->second.guarantee.value, slab_bytes_.value);
}

std::int64_t ReferencePool::home(DomainId domain) const {
  return std::count_if(slabs_.begin(), slabs_.end(), [&](const Entry& slab) {
    return slab.domain == domain && (held(slab) || slab.lent);
  });
}

std::int64_t ReferencePool::fresh_room(DomainId domain) const {
  std::int64_t fresh = std::count_if(slabs_.begin(), slabs_.end(),
                                     [](const Entry& slab) { return !held(slab) && !slab.lent; });
  for (const auto& [other, quota] : quotas_) {
    if (other != domain) fresh -= std::max<std::int64_t>(0, guaranteed(other) - home(other));
  }
  return std::max<std::int64_t>(0, fresh);
}

std::int64_t ReferencePool::renewals(DomainId domain, std::int64_t beyond_held) const {
  std::int64_t own = 0;
  std::map<DomainId, std::int64_t> idle;
  for (const Entry& slab : slabs_) {
    if (held(slab) || !slab.lent) continue;
    if (slab.domain == domain) ++own;
    const bool at_rest = slab.use == SlabUse::kClean || slab.use == SlabUse::kDirty;
    if (slab.domain != domain && at_rest) ++idle[slab.domain];
  }
  std::int64_t most = 0;
  for (const auto& [other, count] : idle) {
    const std::int64_t kept = std::max(count_held(other, true), guaranteed(other));
    most += std::min(count, std::max<std::int64_t>(0, home(other) - kept));
  }
  const std::int64_t lacking = std::min(beyond_held, room(domain, true)) - own - fresh_room(domain);
  return std::clamp<std::int64_t>(lacking, 0, most);
}

std::string ReferencePool::follow_renewals(const TierPool& pool, DomainId domain,
                                           std::int64_t beyond_held) {
  const std::int64_t expected = renewals(domain, beyond_held);
  std::int64_t found = 0;
  for (std::uint32_t i = 0; i < slabs_.size(); ++i) {
    Entry& slab = slabs_[i];
    if (pool.slab(SlabIndex(i)).use != SlabUse::kRenewing || slab.use == SlabUse::kRenewing)
      continue;
    const bool at_rest = slab.use == SlabUse::kClean || slab.use == SlabUse::kDirty;
    const bool loose = at_rest && !held(slab) && slab.lent && slab.domain != domain;
    if (!loose ||
        home(slab.domain) <= std::max(count_held(slab.domain, true), guaranteed(slab.domain))) {
      return "slab " + std::to_string(i) + " was renewed that was not to be had";
    }
    slab = Entry();
    slab.use = SlabUse::kRenewing;
    ++found;
  }
  return found == expected ? std::string() : "it renewed the wrong number of slabs";
}

std::string ReferencePool::follow_renew_for(const TierPool& pool, DomainId domain, Bytes wanted) {
  std::int64_t own = 0;
  for (const Entry& slab : slabs_) {
    const bool mine = held(slab) && slab.domain == domain && !slab.retiring;
    if (mine && is_unassigned(slab.use)) ++own;
    if (mine && slab.use == SlabUse::kClass) {
      const Bytes slot = classes_.at(slab.model_class);
      const bool empty = free_slots(slab) == slab_bytes_ / slot;  // can change class: counts whole
      wanted -= empty ? slab_bytes_ : slot * std::int64_t{free_slots(slab)};
    }
  }
  const std::int64_t slabs = ceil_div(std::max(Bytes(0), wanted).value, slab_bytes_.value);
  return follow_renewals(pool, domain, std::max<std::int64_t>(0, slabs - own));
}

void ReferencePool::slab_renewed(SlabIndex slab) { slabs_[slab.value].use = SlabUse::kClean; }

bool ReferencePool::usable(const Entry& slab, ClassId model_class, DomainId domain) const {
  if (slab.retiring) return false;
  if (slab.use == SlabUse::kClass) {
    return slab.domain == domain && slab.model_class != model_class &&
           free_slots(slab) == slab.slots.size() && !slab.awaited_by;
  }
  if (slab.use == SlabUse::kClean) return !slab.domain || slab.domain == domain;
  return slab.use == SlabUse::kDirty && slab.domain == domain;
}

ErrorCode ReferencePool::expected_code(const SlotRequest& request, std::int64_t missing,
                                       std::int64_t& beyond_held) const {
  if (missing <= 0) return ErrorCode::kOk;
  const std::int64_t wanted = ceil_div(missing, slab_bytes_ / classes_.at(request.model_class));
  std::int64_t own = 0, loose = 0, fresh = 0, own_later = 0, loose_later = 0;
  for (const Entry& slab : slabs_) {
    if (slab.retiring) continue;
    const bool mine = held(slab) && slab.domain == request.domain;
    if (usable(slab, request.model_class, request.domain)) {
      ++(mine ? own : slab.lent ? loose : fresh);
    } else if (is_unassigned(slab.use) && (mine || !held(slab))) {
      ++(mine ? own_later : loose_later);
    }
  }
  const std::int64_t now = std::min(fresh, fresh_room(request.domain));
  loose += now;
  loose_later += fresh - now;
  beyond_held = std::max<std::int64_t>(0, wanted - own - own_later);
  const std::int64_t most = room(request.domain, true);
  if (wanted <= own + std::min(loose, most)) return ErrorCode::kOk;
  if (wanted <= own + own_later + std::min(loose + loose_later, most)) {
    return ErrorCode::kWouldBlock;
  }
  return wanted <= own + own_later + loose + loose_later ? ErrorCode::kQuotaExceeded
                                                         : ErrorCode::kOutOfMemory;
}

std::string ReferencePool::follow(const TierPool& pool, const SlotRequest& request,
                                  const SlotGrant& grant) {
  std::int64_t reach = 0, beyond = 0;
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    const Entry& slab = slabs_[i];
    if (slab.domain != request.domain || slab.model_class != request.model_class) continue;
    if (slab.retiring) continue;
    (reachable(request, i) ? reach : beyond) += free_slots(slab);
  }
  const std::int64_t missing = std::int64_t{request.count} - reach - beyond;
  std::int64_t beyond_held = 0;
  const ErrorCode expected = expected_code(request, missing, beyond_held);
  const bool waits = expected == ErrorCode::kWouldBlock;
  if (std::string broken = follow_renewals(pool, request.domain, waits ? beyond_held : 0);
      !broken.empty()) {
    return broken;
  }
  const bool must_map = expected == ErrorCode::kOk && grant.code == ErrorCode::kWouldBlock;
  if (must_map) {
    if (request.count <= reach || request.mapped == nullptr) return "nothing was to be mapped";
    if (grant.to_map.empty()) return "it names no slab to map";
  } else if (grant.code != expected) {
    return code_text(grant.code, expected);
  }
  const std::int64_t new_slabs =
      expected != ErrorCode::kOk || missing <= 0
          ? 0
          : ceil_div(missing, slab_bytes_ / classes_.at(request.model_class));
  if (std::string broken = follow_assignments(pool, request, new_slabs); !broken.empty()) {
    return broken;
  }
  for (const SlabIndex index : grant.to_map) {
    const Entry& slab = slabs_[index.value];
    if (slab.model_class != request.model_class || slab.domain != request.domain || slab.retiring ||
        free_slots(slab) == 0 || reachable(request, index.value)) {
      return "it names a slab whose mapping helps nothing";
    }
  }
  return follow_slots(request, grant);
}

std::string ReferencePool::follow_assignments(const TierPool& pool, const SlotRequest& request,
                                              std::int64_t expected) {
  std::int64_t assigned = 0;
  for (std::uint32_t i = 0; i < slabs_.size(); ++i) {
    const SlabView view = pool.slab(SlabIndex(i));
    Entry& slab = slabs_[i];
    if (view.use == slab.use && view.model_class == slab.model_class) continue;
    if (view.model_class != request.model_class || view.domain != request.domain) {
      return "slab " + std::to_string(i) + " went to somebody who did not ask";
    }
    if (!usable(slab, request.model_class, request.domain)) {
      return "slab " + std::to_string(i) + " was not to be had";
    }
    slab.use = SlabUse::kClass;
    slab.model_class = request.model_class;
    slab.domain = request.domain;
    slab.awaited_by = reachable(request, i) ? EngineId() : request.owner;
    slab.slots.assign(static_cast<std::size_t>(slab_bytes_ / classes_.at(slab.model_class)), {});
    ++assigned;
  }
  return assigned == expected ? std::string() : "it assigned the wrong number of slabs";
}

std::string ReferencePool::follow_slots(const SlotRequest& request, const SlotGrant& grant) {
  if (grant.code != ErrorCode::kOk) return grant.slots.empty() ? "" : "it failed and gave slots";
  if (grant.slots.size() != request.count) return "it gave the wrong number of slots";
  std::vector<std::pair<std::uint32_t, std::uint32_t>> order;  // free slots, position
  for (std::uint32_t i = 0; i < slabs_.size(); ++i) {
    const Entry& slab = slabs_[i];
    const bool fits = slab.use == SlabUse::kClass && slab.domain == request.domain &&
                      slab.model_class == request.model_class && free_slots(slab) != 0 &&
                      !slab.retiring;
    if (fits && reachable(request, i)) order.emplace_back(free_slots(slab), i);
  }
  std::sort(order.begin(), order.end());
  std::size_t next = 0;
  for (const auto& [free, position] : order) {
    const std::size_t here = std::min<std::size_t>(free, grant.slots.size() - next);
    const bool run = here != 0 && has_run(slabs_[position], here);
    for (std::size_t i = 0; i < here; ++i, ++next) {
      const SlotId slot = grant.slots[next];
      if (slot.slab().value != position) return "it did not fill the fullest slab first";
      if (i > 0 && slot.index() <= grant.slots[next - 1].index()) return "indices do not ascend";
      if (i > 0 && run && slot.index() != grant.slots[next - 1].index() + 1) {
        return "it scattered slots though a run was free";
      }
      Slot& entry = slabs_[position].slots[slot.index()];
      if (entry.state != SlotState::kFree) return "it gave a slot that was not free";
      entry.state = SlotState::kFilling;
    }
  }
  return {};
}

bool ReferencePool::has_run(const Entry& slab, std::size_t length) const {
  std::size_t run = 0;
  for (const Slot& slot : slab.slots) {
    run = slot.state == SlotState::kFree ? run + 1 : 0;
    if (run == length) return true;
  }
  return false;
}

ErrorCode ReferencePool::expected_code(DomainId domain, std::int64_t wanted,
                                       std::int64_t& beyond_held) const {
  std::int64_t own = 0, loose = 0, fresh = 0, own_later = 0, loose_later = 0;
  for (const Entry& slab : slabs_) {
    const bool mine = held(slab) && slab.domain == domain;
    if (slab.use == SlabUse::kQuarantined) ++loose_later;
    if (slab.use == SlabUse::kClass && slab.retiring && mine) ++own_later;
    if (!is_unassigned(slab.use) || (held(slab) && !mine)) continue;
    if (slab.use != SlabUse::kClean) {
      ++(mine ? own_later : loose_later);
    } else if (mine) {
      ++own;
    } else {
      ++(!slab.domain ? fresh : slab.domain == domain ? loose : loose_later);
    }
  }
  const std::int64_t now = std::min(fresh, fresh_room(domain));
  loose += now;
  loose_later += fresh - now;
  beyond_held = std::max<std::int64_t>(0, wanted - own - own_later);
  if (wanted <= own + std::min(loose, room(domain, true))) return ErrorCode::kOk;
  if (wanted <= own + own_later + std::min(loose + loose_later, room(domain, false))) {
    return ErrorCode::kWouldBlock;
  }
  return wanted <= own + own_later + loose + loose_later ? ErrorCode::kQuotaExceeded
                                                         : ErrorCode::kOutOfMemory;
}

std::string ReferencePool::follow(const TierPool& pool, RegionId region, DomainId domain,
                                  EngineId owner, Bytes bytes,
                                  const Result<std::vector<SlabIndex>>& outcome) {
  const std::int64_t wanted = ceil_div(bytes.value, slab_bytes_.value);
  std::int64_t beyond_held = 0;
  const ErrorCode expected = expected_code(domain, wanted, beyond_held);
  const bool waits = expected == ErrorCode::kWouldBlock;
  if (std::string broken = follow_renewals(pool, domain, waits ? beyond_held : 0);
      !broken.empty()) {
    return broken;
  }
  const ErrorCode code = outcome.ok() ? ErrorCode::kOk : outcome.error().code;
  if (code != expected) return code_text(code, expected);
  if (!outcome.ok()) return {};
  if (static_cast<std::int64_t>(outcome->size()) != wanted) return "the region has a wrong size";
  bool kept_only = true;
  for (const SlabIndex index : *outcome) {
    Entry& slab = slabs_[index.value];
    kept_only &= slab.retiring;
    slab.retiring = false;
    if (slab.use != SlabUse::kClean) return "a region got a slab that was not clean";
    if (slab.domain && slab.domain != domain) return "a region got another domain's slab";
    slab.use = SlabUse::kRegion;
    slab.domain = domain;
    slab.region = region;
    slab.owner = owner;
  }
  return kept_only || !keeps_clean_slab(domain) ? "" : "a region left a slab kept for it";
}

bool ReferencePool::keeps_clean_slab(DomainId domain) const {
  return std::any_of(slabs_.begin(), slabs_.end(), [&](const Entry& slab) {
    return slab.retiring && slab.use == SlabUse::kClean && slab.domain == domain;
  });
}

void ReferencePool::move(SlotId slot, SlotState to) {
  Entry& slab = slabs_[slot.slab().value];
  Slot& entry = slab.slots[slot.index()];
  entry.state = to;
  if (to != SlotState::kFree) return;
  if (slab.retiring && free_slots(slab) == slab.slots.size()) free_slab(slab);
}

void ReferencePool::retire(SlabIndex index) {
  Entry& slab = slabs_[index.value];
  slab.retiring = true;
  if (slab.use == SlabUse::kClass && free_slots(slab) == slab.slots.size()) free_slab(slab);
}

void ReferencePool::unretire(SlabIndex index) {
  Entry& slab = slabs_[index.value];
  slab.retiring = false;
  if (slab.use == SlabUse::kClean && !held(slab) && !slab.lent) slab.domain = DomainId{};
}

void ReferencePool::free_slab(Entry& slab) {
  Entry freed;
  freed.use = SlabUse::kDirty;
  freed.domain = slab.domain;
  freed.retiring = slab.retiring;
  freed.lent = slab.lent;
  freed.mapped_by = slab.mapped_by;
  slab = freed;
}

void ReferencePool::release_region(RegionId region) {
  for (Entry& slab : slabs_) {
    if (slab.region == region) free_slab(slab);
  }
}

void ReferencePool::quarantine_region(RegionId region) {
  for (Entry& slab : slabs_) {
    if (slab.region == region) slab.use = SlabUse::kQuarantined;
  }
}

void ReferencePool::set_mapped(SlabIndex index, EngineId engine, bool mapped) {
  Entry& slab = slabs_[index.value];
  if (mapped) {
    slab.mapped_by.insert(engine);
    slab.lent = true;
  } else if (slab.mapped_by.erase(engine) != 0 && slab.mapped_by.empty()) {
    if (slab.use == SlabUse::kClean) slab.use = SlabUse::kDirty;
    if (slab.use == SlabUse::kScrubbing) slab.late_write = true;
  }
}

std::vector<SlabIndex> ReferencePool::take_dirty() {
  auto dirty = slabs_as(SlabUse::kDirty);
  for (const SlabIndex index : dirty) slabs_[index.value].use = SlabUse::kScrubbing;
  return dirty;
}

void ReferencePool::slab_scrubbed(SlabIndex index) {
  Entry& slab = slabs_[index.value];
  slab.use = slab.late_write ? SlabUse::kDirty : SlabUse::kClean;
  slab.late_write = false;
  if (slab.use == SlabUse::kClean && !held(slab) && !slab.lent) slab.domain = DomainId{};
}

void ReferencePool::stop_awaiting(EngineId engine) {
  for (Entry& slab : slabs_) {
    if (slab.awaited_by == engine) slab.awaited_by = EngineId();
  }
}

std::vector<SlabIndex> ReferencePool::reclaim_empty_slabs(DomainId asking) {
  std::vector<SlabIndex> reclaimed;
  for (std::uint32_t i = 0; i < slabs_.size(); ++i) {
    Entry& slab = slabs_[i];
    if (slab.use != SlabUse::kClass || free_slots(slab) != slab.slots.size()) continue;
    if (slab.awaited_by || slab.domain == asking) continue;
    free_slab(slab);
    reclaimed.emplace_back(i);
  }
  return reclaimed;
}

Bytes ReferencePool::available(DomainId domain) const {
  std::int64_t own = 0, loose = 0, fresh = 0;
  Bytes in_slots;
  for (const Entry& slab : slabs_) {
    if (slab.use == SlabUse::kClass) {
      if (slab.domain == domain && !slab.retiring) {
        const std::uint32_t free = free_slots(slab);
        const bool empty = free == slab.slots.size();
        in_slots += empty ? slab_bytes_ : classes_.at(slab.model_class) * std::int64_t{free};
      }
    } else if (usable(slab, ClassId{}, domain)) {
      ++(held(slab) ? own : slab.lent ? loose : fresh);
    }
  }
  loose += std::min(fresh, fresh_room(domain));
  return in_slots + slab_bytes_ * (own + std::min(loose, room(domain, true)));
}

Bytes ReferencePool::used(DomainId domain) const { return slab_bytes_ * count_held(domain, true); }

std::string ReferencePool::compare(const TierPool& pool,
                                   const std::vector<DomainId>& domains) const {
  for (std::uint32_t i = 0; i < slabs_.size(); ++i) {
    if (std::string broken = compare_slab(pool, i); !broken.empty()) {
      return "slab " + std::to_string(i) + ": " + broken;
    }
  }
  for (const DomainId domain : domains) {
    const std::string who = " of domain " + std::to_string(domain.value);
    if (pool.available(domain) != available(domain)) return "available bytes" + who;
    if (pool.used(domain) != used(domain)) return "used bytes" + who;
  }
  return compare_stats(pool);
}

std::string ReferencePool::compare_slab(const TierPool& pool, std::uint32_t position) const {
  const Entry& slab = slabs_[position];
  const SlabView view = pool.slab(SlabIndex(position));
  if (view.use != slab.use) return std::string("use ") + name(view.use) + " not " + name(slab.use);
  if (view.model_class != slab.model_class || view.domain != slab.domain) return "class or domain";
  if (view.retiring != slab.retiring) return "retiring";
  if (view.region != slab.region || view.owner != slab.owner) return "region or owner";
  if (view.slots != slab.slots.size() || view.used != slab.slots.size() - free_slots(slab)) {
    return "slots or used";
  }
  for (std::uint32_t i = 0; i < slab.slots.size(); ++i) {
    const SlotId slot(SlabIndex(position), i);
    if (pool.state(slot) != slab.slots[i].state) return "slot " + std::to_string(i);
  }
  return {};
}

std::string ReferencePool::compare_stats(const TierPool& pool) const {
  const TierStats stats = pool.stats();
  Bytes free, stranded, quarantined, region, busy, lost;
  for (const Entry& slab : slabs_) {
    if (is_unassigned(slab.use)) free += slab_bytes_;
    if (slab.use == SlabUse::kRegion) region += slab_bytes_;
    if (slab.use == SlabUse::kQuarantined) quarantined += slab_bytes_;
    if (slab.use != SlabUse::kClass) continue;
    const Bytes slot_bytes = classes_.at(slab.model_class);
    const std::int64_t empty = free_slots(slab), all = static_cast<std::int64_t>(slab.slots.size());
    free += slot_bytes * empty;
    if (empty != all) stranded += slot_bytes * empty;
    lost += slab_bytes_ - slot_bytes * all;
    for (const Slot& slot : slab.slots) {
      const bool in_quarantine = slot.state == SlotState::kQuarantined;
      if (in_quarantine) quarantined += slot_bytes;
      if (!in_quarantine && slot.state != SlotState::kFree) busy += slot_bytes;
    }
  }
  if (stats.free != free) return "free bytes";
  if (stats.stranded != stranded) return "stranded bytes";
  if (stats.quarantined != quarantined) return "quarantined bytes";
  if (stats.region != region) return "region bytes";
  return free + quarantined + region + busy + lost == stats.capacity ? "" : "sum of all bytes";
}

std::vector<SlotId> ReferencePool::slots_in(SlotState state) const {
  std::vector<SlotId> found;
  for (std::uint32_t s = 0; s < slabs_.size(); ++s) {
    for (std::uint32_t i = 0; i < slabs_[s].slots.size(); ++i) {
      if (slabs_[s].slots[i].state == state) found.emplace_back(SlabIndex(s), i);
    }
  }
  return found;
}

std::vector<RegionId> ReferencePool::regions(SlabUse use) const {
  std::set<RegionId> found;
  for (const Entry& slab : slabs_) {
    if (slab.use == use && slab.region) found.insert(slab.region);
  }
  return {found.begin(), found.end()};
}

std::vector<SlabIndex> ReferencePool::retiring_slabs() const {
  std::vector<SlabIndex> found;
  for (std::uint32_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i].retiring) found.emplace_back(i);
  }
  return found;
}

std::vector<SlabIndex> ReferencePool::slabs_as(SlabUse use) const {
  std::vector<SlabIndex> found;
  for (std::uint32_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i].use == use) found.emplace_back(i);
  }
  return found;
}

}  // namespace kvd::pool
