#include "kvd/pool/budget.hpp"

#include <algorithm>
#include <array>

namespace kvd::pool {
namespace {

void append(Positions& to, const Positions& more) { to.insert(to.end(), more.begin(), more.end()); }

}  // namespace

std::uint32_t Budget::room(DomainId domain) const {
  return room_slabs(quotas_, book_.ledger().held(), domain, book_.capacity());
}

// A domain's own slabs are the ones it holds and the ones its engines were given before. Where its
// guarantee exceeds these, the rest is kept for it among the slabs that no engine knows, so it
// never waits for memory to be made.
std::uint32_t Budget::fresh_room(DomainId domain) const {
  const DomainSums& all = book_.ledger().total();
  const std::uint32_t fresh =
      all.loose_slabs() - all.lent_slabs() - all.loose_as(SlabUse::kMissing);
  std::uint64_t kept = 0;
  for (const auto& [other, quota] : quotas_) {
    if (other == domain) continue;
    const DomainSums& sums = book_.ledger().of(other);
    const std::uint32_t guaranteed = guaranteed_slabs(quota, book_.capacity());
    kept += guaranteed - std::min(guaranteed, sums.held_slabs() + sums.lent_slabs());
  }
  return fresh - static_cast<std::uint32_t>(std::min<std::uint64_t>(fresh, kept));
}

std::uint32_t Budget::held_idle(DomainId domain) const {
  const DomainSums& own = book_.ledger().of(domain);
  return own.held_as(SlabUse::kClean) + own.held_as(SlabUse::kDirty) -
         own.retiring_as(SlabUse::kClean) - own.retiring_as(SlabUse::kDirty);
}

std::uint32_t Budget::loose_now(DomainId domain, bool dirty_too) const {
  const DomainSums& own = book_.ledger().of(domain);
  std::uint32_t lent = own.lent_as(SlabUse::kClean);
  std::uint32_t fresh = book_.ledger().of(DomainId{}).loose_as(SlabUse::kClean);
  if (dirty_too) {
    lent += own.lent_as(SlabUse::kDirty);
    fresh += own.loose_as(SlabUse::kDirty) - own.lent_as(SlabUse::kDirty);
  }
  return lent + std::min(fresh, fresh_room(domain));
}

std::uint32_t Budget::slabs_for(Bytes bytes) const {
  const Bytes slab = book_.capacity().slab_bytes;
  const std::int64_t slabs = bytes / slab + (bytes.value % slab.value != 0);
  return static_cast<std::uint32_t>(std::min<std::int64_t>(slabs, UINT32_MAX));
}

bool Budget::renewable(const Slab& slab, DomainId domain) const {
  const bool idle = slab.use == SlabUse::kClean || slab.use == SlabUse::kDirty;
  if (!idle || slab.held() || !slab.lent || slab.domain == domain) return false;
  const DomainSums& owner = book_.ledger().of(slab.domain);
  const auto quota = quotas_.find(slab.domain);
  const std::uint32_t guaranteed =
      quota == quotas_.end() ? 0 : guaranteed_slabs(quota->second, book_.capacity());
  return owner.held_slabs() + owner.lent_slabs() > std::max(owner.held_slabs(), guaranteed);
}

bool Budget::helps(const Slab& slab, DomainId domain) const {
  HeldSlabs held = book_.ledger().held();
  --held.at(slab.domain);
  return room_slabs(quotas_, held, domain, book_.capacity()) > room(domain);
}

SlabSupply Budget::supply_for_class(ClassId model_class, DomainId domain) const {
  const DomainSums& own = book_.ledger().of(domain);
  const auto empty = static_cast<std::uint32_t>(book_.empty_foreign(model_class, domain).size());
  SlabSupply supply;
  supply.held = held_idle(domain) + empty;
  supply.loose = loose_now(domain, true);
  supply.held_later = own.held_as(SlabUse::kScrubbing) - own.retiring_as(SlabUse::kScrubbing);
  supply.loose_later = book_.ledger().total().loose_slabs() - supply.loose;
  supply.room = supply.room_later = room(domain);
  return supply;
}

SlabSupply Budget::supply_for_region(DomainId domain) const {
  const Ledger& ledger = book_.ledger();
  const DomainSums& own = ledger.of(domain);
  const DomainSums& all = ledger.total();
  HeldSlabs held_later = ledger.held();
  for (auto& [other, count] : held_later) count -= ledger.of(other).held_as(SlabUse::kQuarantined);
  SlabSupply supply;
  supply.held = own.held_as(SlabUse::kClean);
  supply.loose = loose_now(domain, false);
  supply.held_later = own.held_as(SlabUse::kDirty) + own.held_as(SlabUse::kScrubbing) +
                      own.retiring_as(SlabUse::kClass);
  supply.loose_later = all.loose_slabs() - supply.loose + all.held_as(SlabUse::kQuarantined);
  supply.room = room(domain);
  supply.room_later = room_slabs(quotas_, held_later, domain, book_.capacity());
  return supply;
}

// Slabs that cost the domain no quota and the owner no mapping come first, then slabs that its
// engines know already, so that it spoils as few as possible for others. A dirty slab comes before
// a clean one, since clean ones also serve regions and other domains. A change of class comes last.
Positions Budget::choose_for_class(const SlotRequest& request, std::uint32_t wanted) const {
  if (wanted == 0) return {};
  std::array<Positions, 5> ranks;  // reachable, held, lent, dirty, clean
  for (std::uint32_t position = book_.begin(); position < book_.end(); ++position) {
    const Slab& slab = book_.at(SlabIndex(position));
    const bool own = slab.domain == request.domain;
    if (slab.use != SlabUse::kDirty && slab.use != SlabUse::kClean) continue;
    if (slab.retiring) continue;
    if (slab.held() && own) {
      const bool reachable = request.mapped != nullptr && request.reaches(position);
      ranks[reachable ? 0 : 1].push_back(position);
    } else if (!slab.held() && own && slab.lent) {
      ranks[2].push_back(position);
    } else if (!slab.held() && (own || !slab.domain)) {
      ranks[slab.use == SlabUse::kDirty ? 3 : 4].push_back(position);
    }
  }
  Positions chosen = ranks[0];
  append(chosen, ranks[1]);
  append(ranks[3], ranks[4]);
  append(chosen, loose_for_class(ranks[2], ranks[3], request.domain));
  append(chosen, book_.empty_foreign(request.model_class, request.domain));
  chosen.resize(wanted);
  return chosen;
}

Positions Budget::loose_for_class(const Positions& lent, Positions fresh, DomainId domain) const {
  fresh.resize(std::min<std::size_t>(fresh.size(), fresh_room(domain)));
  const auto is_dirty = [this](std::uint32_t at) {
    return book_.at(SlabIndex(at)).use == SlabUse::kDirty;
  };
  Positions loose = lent;
  std::stable_partition(loose.begin(), loose.end(), is_dirty);
  append(loose, fresh);
  loose.resize(std::min<std::size_t>(loose.size(), room(domain)));
  return loose;
}

// Clean slabs that the domain holds already cost no quota and go first, those kept for a region
// ahead of the others. Slabs that its engines know already follow.
Positions Budget::choose_for_region(DomainId domain, std::uint32_t wanted) const {
  Positions chosen, held, lent, fresh;
  for (std::uint32_t position = book_.begin(); position < book_.end(); ++position) {
    const Slab& slab = book_.at(SlabIndex(position));
    if (slab.use != SlabUse::kClean) continue;
    if (!slab.held() && !slab.domain) fresh.push_back(position);
    if (slab.domain != domain) continue;
    (slab.retiring ? chosen : slab.held() ? held : lent).push_back(position);
  }
  for (const Positions* more : {&held, &lent, &fresh}) append(chosen, *more);
  chosen.resize(wanted);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace kvd::pool
