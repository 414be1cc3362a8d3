// What the pool shows and how it checks itself.
#include <algorithm>

#include "kvd/pool/budget.hpp"
#include "kvd/pool/tier_pool.hpp"

namespace kvd::pool {
namespace {

void count_slots(const Slab& slab, TierStats& stats) {
  for (std::size_t i = 0; i < kSlotStates; ++i) {
    stats.slots_by_state[i] += slab.slots.count(static_cast<SlotState>(i));
  }
  stats.free += slab.free_bytes();
  stats.quarantined += slab.slot_bytes * std::int64_t{slab.slots.count(SlotState::kQuarantined)};
  if (slab.slots.used() != 0) stats.stranded += slab.free_bytes();
}

SlabView view_of(SlabIndex index, const Slab& slab) {
  SlabView view{.index = index,
                .use = slab.use,
                .retiring = slab.retiring,
                .model_class = slab.model_class,
                .domain = slab.domain,
                .region = slab.region,
                .owner = slab.owner,
                .slots = slab.slots.size(),
                .used = slab.slots.used()};
  for (std::size_t i = 0; i < kSlotStates; ++i) {
    view.by_state[i] = slab.slots.count(static_cast<SlotState>(i));
  }
  view.engines = static_cast<std::uint32_t>(slab.mapped_by.size());
  const std::size_t named = std::min(slab.mapped_by.size(), SlabView::kNamedEngines);
  std::copy_n(slab.mapped_by.begin(), named, view.mapped_by.begin());
  return view;
}

/// Class slabs that do not retire and that `wanted` accepts, those with the fewest used slots
/// first.
template <class Wanted>
std::vector<SlabIndex> emptiest_first(const SlabBook& book, Wanted wanted) {
  std::vector<SlabIndex> found;
  for (std::uint32_t position = book.begin(); position < book.end(); ++position) {
    const Slab& slab = book.at(SlabIndex(position));
    if (slab.use == SlabUse::kClass && !slab.retiring && wanted(slab)) found.emplace_back(position);
  }
  std::stable_sort(found.begin(), found.end(), [&](SlabIndex a, SlabIndex b) {
    return book.at(a).slots.used() < book.at(b).slots.used();
  });
  return found;
}

}  // namespace

// All slabs have one size where pools are added up. Otherwise the size is that of the last pool.
TierStats& TierStats::operator+=(const TierStats& other) {
  capacity += other.capacity;
  slab_bytes = other.slab_bytes;
  slabs += other.slabs;
  slabs_unassigned += other.slabs_unassigned;
  slabs_retiring += other.slabs_retiring;
  free += other.free;
  missing += other.missing;
  region += other.region;
  quarantined += other.quarantined;
  stranded += other.stranded;
  for (std::size_t state = 0; state < slots_by_state.size(); ++state) {
    slots_by_state[state] += other.slots_by_state[state];
  }
  return *this;
}

TierStats TierPool::stats() const {
  TierStats stats;
  stats.capacity = config_.slab_bytes * std::int64_t{config_.slabs};
  stats.slab_bytes = config_.slab_bytes;
  stats.slabs = config_.slabs;
  for (const Slab& slab : book_.slabs()) {
    if (unassigned(slab.use)) {
      ++stats.slabs_unassigned;
      (slab.use == SlabUse::kMissing ? stats.missing : stats.free) += config_.slab_bytes;
    }
    if (slab.retiring) ++stats.slabs_retiring;
    if (slab.use == SlabUse::kRegion) stats.region += config_.slab_bytes;
    if (slab.use == SlabUse::kQuarantined) stats.quarantined += config_.slab_bytes;
    if (slab.use == SlabUse::kClass) count_slots(slab, stats);
  }
  return stats;
}

SlabView TierPool::slab(SlabIndex index) const { return view_of(index, book_.at(index)); }

std::vector<SlabView> TierPool::slabs() const {
  std::vector<SlabView> views;
  views.reserve(config_.slabs);
  for (std::uint32_t at = book_.begin(); at < book_.end(); ++at)
    views.push_back(slab(SlabIndex(at)));
  return views;
}

std::vector<SlabIndex> TierPool::foreign_slabs(ClassId model_class, DomainId domain) const {
  return emptiest_first(book_, [&](const Slab& slab) {
    return slab.domain == domain && slab.model_class != model_class;
  });
}

std::vector<SlabIndex> TierPool::wanted_if_empty(ClassId model_class, DomainId domain) const {
  const Budget budget(book_, shared_);
  return emptiest_first(book_, [&](const Slab& slab) {
    if (slab.slots.used() == 0 || slab.awaited_by || slab.lent) return false;
    if (slab.domain == domain) return slab.model_class != model_class;
    return budget.helps(slab, domain);
  });
}

std::string TierPool::validate() const {
  if (std::string broken = renewals_.validate(book_); !broken.empty()) return broken;
  if (std::string broken = book_.validate(); !broken.empty()) return broken;
  return regions_.validate(book_);
}

}  // namespace kvd::pool
