#include <algorithm>
#include <array>

#include "ipc/vocabulary/check.hpp"
#include "kvd/pool/tier_pool.hpp"

namespace kvd::pool {
namespace {

bool is_mapped(const SlotRequest& request, std::uint32_t position) {
  if (request.mapped == nullptr) return true;
  return position < request.mapped->size() && (*request.mapped)[position];
}

}  // namespace

SlotGrant TierPool::allocate(const SlotRequest& request) {
  KVD_CHECK(request.domain, "slots are granted to a domain");
  const Positions reachable = with_room(request, true, request.count);
  const std::uint64_t free = free_in(reachable);
  if (free >= request.count) {
    return {.code = ErrorCode::kOk, .slots = take(request, reachable), .to_map = {}};
  }
  SlotGrant outcome = make_room(request, request.count - free);
  if (outcome.code == ErrorCode::kOk) {
    outcome.slots = take(request, with_room(request, true, request.count));
  }
  return outcome;
}

TierPool::Positions TierPool::with_room(const SlotRequest& request, bool mapped,
                                        std::uint64_t wanted) const {
  Positions positions;
  const auto group = room_.find({request.model_class, request.domain});
  if (group == room_.end()) return positions;
  std::uint64_t found = 0;
  for (const auto& [free, position] : group->second) {
    if (found >= wanted) break;
    if (is_mapped(request, position) != mapped) continue;
    positions.push_back(position);
    found += free;
  }
  return positions;
}

std::uint64_t TierPool::free_in(const Positions& positions) const {
  std::uint64_t free = 0;
  for (const std::uint32_t position : positions) free += slabs_[position].slots.free();
  return free;
}

std::vector<SlotId> TierPool::take(const SlotRequest& request, const Positions& from) {
  std::vector<SlotId> slots;
  slots.reserve(request.count);
  for (const std::uint32_t position : from) {
    Slab& slab = slabs_[position];
    const std::uint32_t free = slab.slots.free();
    const Bytes grantable = slab.grantable_bytes();
    const auto missing = request.count - static_cast<std::uint32_t>(slots.size());
    const auto taken = slab.slots.take(std::min(missing, free), request.owner);
    for (const std::uint32_t index : taken) slots.emplace_back(SlabIndex(position), index);
    ledger_.change_free(slab.domain, slab.grantable_bytes() - grantable);
    relist(position, free);
  }
  return slots;
}

// Ok when the owner can reach enough free slots afterwards. Decides before it changes anything.
SlotGrant TierPool::make_room(const SlotRequest& request, std::uint64_t missing) {
  SlotGrant outcome;
  const Positions unmapped = with_room(request, false, missing);
  for (const std::uint32_t position : unmapped) outcome.to_map.emplace_back(position);
  missing -= std::min(missing, free_in(unmapped));
  const std::uint32_t slots_per_slab = class_of(request.model_class).slots_per_slab;
  const auto wanted = static_cast<std::uint32_t>((missing + slots_per_slab - 1) / slots_per_slab);
  const SlabSupply supply = supply_for_class(request.model_class, request.domain);
  outcome.code = judge(wanted, supply);
  const std::uint32_t own = supply.held + supply.held_later;
  if (outcome.code == ErrorCode::kWouldBlock) {
    renew_slabs(request.domain, wanted - std::min(wanted, own));
  }
  if (outcome.code != ErrorCode::kOk) return {.code = outcome.code, .slots = {}, .to_map = {}};
  for (const std::uint32_t position : choose_for_class(request, wanted)) {
    assign(position, request.model_class, request.domain);
    if (is_mapped(request, position)) continue;
    slabs_[position].awaited_by = request.owner;
    outcome.to_map.emplace_back(position);
  }
  if (!outcome.to_map.empty()) outcome.code = ErrorCode::kWouldBlock;
  return outcome;
}

std::uint32_t TierPool::room(DomainId domain) const {
  return room_slabs(quotas_, ledger_.held(), domain, capacity());
}

SlabSupply TierPool::supply_for_class(ClassId model_class, DomainId domain) const {
  const DomainSums own = ledger_.of(domain);
  const DomainSums all = ledger_.total();
  SlabSupply supply;
  supply.held = own.held_as(SlabUse::kClean) + own.held_as(SlabUse::kDirty) -
                own.retiring_as(SlabUse::kClean) - own.retiring_as(SlabUse::kDirty) +
                static_cast<std::uint32_t>(empty_foreign_slabs(model_class, domain).size());
  supply.loose = loose_now(domain, true);
  supply.held_later = own.held_as(SlabUse::kScrubbing) - own.retiring_as(SlabUse::kScrubbing);
  supply.loose_later = all.loose_slabs() - supply.loose;
  supply.room = supply.room_later = room(domain);
  return supply;
}

TierPool::Positions TierPool::empty_foreign_slabs(ClassId model_class, DomainId domain) const {
  Positions empty;
  for (const auto& [group, positions] : room_) {
    if (group.first == model_class || group.second != domain) continue;
    for (const auto& [free, position] : positions) {
      if (slabs_[position].empty_class()) empty.push_back(position);
    }
  }
  std::sort(empty.begin(), empty.end());
  return empty;
}

// What costs the domain no quota and the owner no mapping comes first, then what its engines know
// already, so that it spoils as little as possible for others; a dirty slab before a clean one,
// since clean ones also serve regions and other domains; a change of class last. Precondition:
// judge said Ok.
TierPool::Positions TierPool::choose_for_class(const SlotRequest& request,
                                               std::uint32_t wanted) const {
  if (wanted == 0) return {};
  std::array<Positions, 5> ranks;  // reachable, held, lent, dirty, clean
  for (std::uint32_t position = 0; position < slabs_.size(); ++position) {
    const Slab& slab = slabs_[position];
    const bool own = slab.domain == request.domain;
    if (slab.use != SlabUse::kDirty && slab.use != SlabUse::kClean) continue;
    if (slab.retiring) continue;
    if (slab.held() && own) {
      const bool reachable = request.mapped != nullptr && is_mapped(request, position);
      ranks[reachable ? 0 : 1].push_back(position);
    } else if (!slab.held() && own && slab.lent) {
      ranks[2].push_back(position);
    } else if (!slab.held() && (own || !slab.domain)) {
      ranks[slab.use == SlabUse::kDirty ? 3 : 4].push_back(position);
    }
  }
  Positions chosen = ranks[0];
  chosen.insert(chosen.end(), ranks[1].begin(), ranks[1].end());
  Positions fresh = ranks[3];
  fresh.insert(fresh.end(), ranks[4].begin(), ranks[4].end());
  fresh.resize(std::min<std::size_t>(fresh.size(), fresh_room(request.domain)));
  const auto is_dirty = [this](std::uint32_t at) { return slabs_[at].use == SlabUse::kDirty; };
  Positions loose = ranks[2];
  std::stable_partition(loose.begin(), loose.end(), is_dirty);
  loose.insert(loose.end(), fresh.begin(), fresh.end());
  loose.resize(std::min<std::size_t>(loose.size(), room(request.domain)));
  chosen.insert(chosen.end(), loose.begin(), loose.end());
  const Positions foreign = empty_foreign_slabs(request.model_class, request.domain);
  chosen.insert(chosen.end(), foreign.begin(), foreign.end());
  chosen.resize(wanted);
  return chosen;
}

}  // namespace kvd::pool
