// What the pool shows and how it checks itself.
#include <algorithm>

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

}  // namespace

TierStats TierPool::stats() const {
  TierStats stats;
  stats.capacity = config_.slab_bytes * std::int64_t{config_.slabs};
  stats.slab_bytes = config_.slab_bytes;
  stats.slabs = config_.slabs;
  for (const Slab& slab : slabs_) {
    if (unassigned(slab.use)) {
      ++stats.slabs_unassigned;
      stats.free += config_.slab_bytes;
    }
    if (slab.retiring) ++stats.slabs_retiring;
    if (slab.use == SlabUse::kRegion) stats.region += config_.slab_bytes;
    if (slab.use == SlabUse::kQuarantined) stats.quarantined += config_.slab_bytes;
    if (slab.use == SlabUse::kClass) count_slots(slab, stats);
  }
  return stats;
}

SlabView TierPool::view(std::uint32_t position) const {
  const Slab& slab = slabs_[position];
  return {.index = SlabIndex(position),
          .use = slab.use,
          .retiring = slab.retiring,
          .model_class = slab.model_class,
          .domain = slab.domain,
          .region = slab.region,
          .owner = slab.owner,
          .slots = slab.slots.size(),
          .used = slab.slots.used()};
}

SlabView TierPool::slab(SlabIndex index) const {
  static_cast<void>(at(index));
  return view(index.value);
}

std::vector<SlabView> TierPool::slabs() const {
  std::vector<SlabView> views;
  views.reserve(slabs_.size());
  for (std::uint32_t position = 0; position < slabs_.size(); ++position) {
    views.push_back(view(position));
  }
  return views;
}

std::vector<SlabIndex> TierPool::foreign_slabs(ClassId model_class, DomainId domain) const {
  std::vector<SlabIndex> found;
  for (std::uint32_t position = 0; position < slabs_.size(); ++position) {
    const Slab& slab = slabs_[position];
    if (slab.use != SlabUse::kClass || slab.domain != domain) continue;
    if (slab.model_class == model_class || slab.retiring) continue;
    found.emplace_back(position);
  }
  std::stable_sort(found.begin(), found.end(), [this](SlabIndex a, SlabIndex b) {
    return at(a).slots.used() < at(b).slots.used();
  });
  return found;
}

std::string TierPool::validate() const {
  if (std::string broken = validate_slabs(); !broken.empty()) return broken;
  if (std::string broken = validate_room(); !broken.empty()) return broken;
  if (std::string broken = validate_regions(); !broken.empty()) return broken;
  if (ledger_ != Ledger(slabs_)) return "the sums per domain differ from a fresh count";
  return {};
}

std::string TierPool::validate_slabs() const {
  for (const SlabIndex index : renewals_) {
    if (at(index).use != SlabUse::kRenewing) return "a slab is to be renewed that is not renewing";
  }
  for (std::uint32_t position = 0; position < slabs_.size(); ++position) {
    const Slab& slab = slabs_[position];
    const std::string which = "slab " + std::to_string(position) + ": ";
    if (const std::string broken = slab.validate(); !broken.empty()) return which + broken;
    if (slab.use != SlabUse::kClass) continue;
    const auto known = classes_.find(slab.model_class);
    if (known == classes_.end()) return which + "its class is unknown";
    if (slab.slots.size() != known->second.slots_per_slab ||
        slab.slot_bytes != known->second.slot_bytes ||
        slab.slack + slab.slot_bytes * std::int64_t{slab.slots.size()} != config_.slab_bytes) {
      return which + "it is not divided as its class says";
    }
  }
  return {};
}

std::string TierPool::validate_room() const {
  std::size_t listed = 0;
  for (const auto& [group, room] : room_) listed += room.size();
  for (std::uint32_t position = 0; position < slabs_.size(); ++position) {
    const Slab& slab = slabs_[position];
    if (slab.slots.free() == 0 || slab.retiring) continue;
    const auto group = room_.find({slab.model_class, slab.domain});
    if (group == room_.end() || !group->second.contains({slab.slots.free(), position})) {
      return "slab " + std::to_string(position) + ": its class does not list its free slots";
    }
    --listed;
  }
  return listed == 0 ? std::string() : "a class lists free slots of a slab that has none for it";
}

std::string TierPool::validate_regions() const {
  std::size_t leased = 0;
  for (const auto& [region, indices] : regions_) {
    if (indices.empty()) return "region " + std::to_string(region.value) + " has no slab";
    for (const SlabIndex index : indices) {
      if (at(index).region != region) {
        return "slab " + std::to_string(index.value) + ": its region does not know it";
      }
    }
    leased += indices.size();
  }
  const auto in_region = [](const Slab& slab) { return static_cast<bool>(slab.region); };
  const auto marked = std::count_if(slabs_.begin(), slabs_.end(), in_region);
  return leased == static_cast<std::size_t>(marked)
             ? std::string()
             : "a slab says it is of a region that does not list it";
}

}  // namespace kvd::pool
