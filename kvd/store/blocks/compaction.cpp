#include "kvd/store/blocks/compaction.hpp"

#include <algorithm>
#include <utility>

namespace kvd::store {

namespace {

/// Whether the slab's blocks fit into other slabs that are in use by the same class and domain.
bool fits_elsewhere(const std::vector<pool::SlabView>& slabs, const pool::SlabView& slab) {
  std::uint32_t free = 0;
  for (const pool::SlabView& other : slabs) {
    const bool takes = other.use == pool::SlabUse::kClass && !other.retiring &&
                       other.model_class == slab.model_class && other.domain == slab.domain;
    if (takes && other.index != slab.index && other.used > 0) free += other.slots - other.used;
  }
  return free >= slab.used;
}

}  // namespace

std::vector<SlabIndex> emptiable(const pool::TierPool& tier, ClassId model_class, DomainId domain) {
  std::vector<SlabIndex> found = tier.wanted_if_empty(model_class, domain);
  const std::vector<pool::SlabView> slabs = tier.slabs();
  std::erase_if(found, [&](SlabIndex slab) { return !fits_elsewhere(slabs, slabs[slab.value]); });
  return found;
}

std::vector<Movable> first_movable(const pool::TierPool& tier, const std::vector<SlabIndex>& slabs,
                                   const std::vector<Movable>& movable) {
  for (const SlabIndex slab : slabs) {
    std::vector<Movable> inside;
    std::copy_if(movable.begin(), movable.end(), std::back_inserter(inside),
                 [&](const Movable& block) { return block.slot.slab() == slab; });
    if (inside.size() == tier.slab(slab).used) return inside;
  }
  return {};
}

void Compaction::want(const Taker& taker, Bytes needed) {
  if (tiers_.pool(Tier::kDram).stats().free >= needed) wanted_ = taker;
}

void Compaction::forget() {
  wanted_.reset();
  emptying_.reset();
}

std::vector<SlabIndex> Compaction::candidates() {
  if (!wanted_ || round_) return {};
  const pool::TierPool& dram = tiers_.pool(Tier::kDram);
  if (emptying_ && dram.slab(*emptying_).used == 0) {
    // A slab of another domain can be used once it is zeroed.
    tiers_.reclaim(Tier::kDram, wanted_->domain);
    forget();
    return {};
  }
  std::vector<SlabIndex> slabs = emptiable(dram, wanted_->model_class, wanted_->domain);
  if (slabs.empty()) forget();
  return slabs;
}

void Compaction::start(const std::vector<SlabIndex>& slabs, const std::vector<Movable>& movable,
                       Bytes most) {
  const pool::TierPool& dram = tiers_.pool(Tier::kDram);
  std::vector<Movable> chosen = first_movable(dram, slabs, movable);
  if (chosen.empty()) return forget();
  const Bytes slot_bytes = chosen.front().slot_bytes;
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(1, most / slot_bytes));
  chosen.resize(std::min(chosen.size(), count));
  const SlabIndex slab = chosen.front().slot.slab();
  std::vector<SlotId> from;
  from.reserve(chosen.size());
  for (const Movable& block : chosen) from.push_back(block.slot);
  const pool::SlabView owner = dram.slab(slab);
  const auto order = tiers_.move({owner.model_class, owner.domain, {}, slot_bytes}, from);
  if (!order) return forget();
  emptying_ = slab;
  round_ = Round{order->ticket, wanted_->domain, slot_bytes, {}};
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    round_->moves.push_back({chosen[i], order->pairs[i].to});
  }
}

std::optional<Compaction::Round> Compaction::ended(Ticket ticket) {
  if (!round_ || round_->ticket != ticket) return std::nullopt;
  return std::exchange(round_, std::nullopt);
}

}  // namespace kvd::store
