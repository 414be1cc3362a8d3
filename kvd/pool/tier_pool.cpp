// Classes, slot states, quotas; tier_pool_allocate.cpp grants slots, tier_pool_slabs.cpp moves
// whole slabs, tier_pool_renewal.cpp keeps domains apart, tier_pool_views.cpp reports and checks.
#include "kvd/pool/tier_pool.hpp"

#include <algorithm>

#include "ipc/vocabulary/check.hpp"

namespace kvd::pool {
namespace {

template <class... State>
constexpr unsigned any_of(State... states) {
  return ((1u << static_cast<unsigned>(states)) | ...);
}

constexpr unsigned kReleasable =
    any_of(SlotState::kFilling, SlotState::kOpen, SlotState::kSealed, SlotState::kDraining);

}  // namespace

TierPool::TierPool(Config config, Quotas quotas)
    : config_(config), quotas_(std::move(quotas)), slabs_(config.slabs), ledger_(slabs_) {
  KVD_CHECK(config.slab_bytes > Bytes{}, "a tier needs slabs of some size");
  KVD_CHECK(config.slabs < SlotId::kMaxSlabs, "a slot id cannot number that many slabs");
  KVD_CHECK(check_quotas(quotas_, capacity()).ok(), "quotas were not checked against the tier");
}

bool TierPool::remove_class(ClassId model_class) {
  const bool used = std::any_of(slabs_.begin(), slabs_.end(), [&](const Slab& slab) {
    return slab.use == SlabUse::kClass && slab.model_class == model_class;
  });
  if (used) return false;
  classes_.erase(model_class);
  std::erase_if(room_, [&](const auto& entry) { return entry.first.first == model_class; });
  return true;
}

Status TierPool::add_class(ClassId model_class, Bytes slot_bytes) {
  KVD_CHECK(model_class, "class 0 means none");
  if (slot_bytes <= Bytes{} || slot_bytes > config_.slab_bytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a slot of " + std::to_string(slot_bytes.value) +
                          " bytes does not fit a slab of " +
                          std::to_string(config_.slab_bytes.value) +
                          " bytes: use fewer layers per block or larger slabs");
  }
  const std::int64_t slots = config_.slab_bytes / slot_bytes;
  if (slots > std::int64_t{SlotId::kMaxSlotsPerSlab}) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a slab would hold " + std::to_string(slots) + " slots, more than " +
                          std::to_string(SlotId::kMaxSlotsPerSlab) +
                          ": use more layers per block or smaller slabs");
  }
  const Class added{slot_bytes, static_cast<std::uint32_t>(slots)};
  const auto [known, is_new] = classes_.emplace(model_class, added);
  if (is_new || known->second.slot_bytes == slot_bytes) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "the class is known with slots of " +
                        std::to_string(known->second.slot_bytes.value) +
                        " bytes: another shape needs another class");
}

Bytes TierPool::slot_bytes(ClassId model_class) const { return class_of(model_class).slot_bytes; }

void TierPool::mark_open(SlotId slot) { move(slot, any_of(SlotState::kFilling), SlotState::kOpen); }

void TierPool::seal(SlotId slot) {
  move(slot, any_of(SlotState::kFilling, SlotState::kOpen), SlotState::kSealed);
}

void TierPool::drain(SlotId slot) {
  move(slot, any_of(SlotState::kFilling, SlotState::kOpen, SlotState::kSealed),
       SlotState::kDraining);
}

void TierPool::release(SlotId slot) { release(std::span(&slot, 1)); }

void TierPool::release(std::span<const SlotId> slots) {
  while (!slots.empty()) {
    const SlabIndex slab = slots.front().slab();
    const auto end =
        std::find_if(slots.begin(), slots.end(), [&](SlotId slot) { return slot.slab() != slab; });
    const auto count = static_cast<std::size_t>(end - slots.begin());
    free_slots(slab, slots.first(count), kReleasable);
    slots = slots.subspan(count);
  }
}

void TierPool::quarantine(SlotId slot) { move(slot, kReleasable, SlotState::kQuarantined); }

void TierPool::scrub(SlotId slot) {
  move(slot, any_of(SlotState::kQuarantined), SlotState::kScrubbing);
}

void TierPool::scrubbed(SlotId slot) {
  free_slots(slot.slab(), std::span(&slot, 1), any_of(SlotState::kScrubbing));
}

EngineId TierPool::owner(SlotId slot) const { return at(slot.slab()).slots.owner(slot.index()); }

Bytes TierPool::available(DomainId domain) const {
  const DomainSums own = ledger_.of(domain);
  const std::uint32_t held = own.held_as(SlabUse::kClean) + own.held_as(SlabUse::kDirty) -
                             own.retiring_as(SlabUse::kClean) - own.retiring_as(SlabUse::kDirty);
  const std::uint32_t loose = std::min(loose_now(domain, true), room(domain));
  return own.free + config_.slab_bytes * std::int64_t{held + loose};
}

Bytes TierPool::used(DomainId domain) const {
  const auto held = ledger_.held().find(domain);
  if (held == ledger_.held().end()) return {};
  return config_.slab_bytes * std::int64_t{held->second};
}

std::uint32_t TierPool::most_slabs(DomainId domain) const {
  return pool::most_slabs(quotas_, domain, capacity());
}

Status TierPool::set_quotas(Quotas quotas) {
  KVD_TRY(check_quotas(quotas, capacity()));
  quotas_ = std::move(quotas);
  return {};
}

const TierPool::Class& TierPool::class_of(ClassId model_class) const {
  const auto found = classes_.find(model_class);
  KVD_CHECK(found != classes_.end(), "a class is used before add_class");
  return found->second;
}

void TierPool::move(SlotId slot, States from, SlotState to) {
  Slab& slab = at(slot.slab());
  KVD_CHECK((any_of(slab.slots.state(slot.index())) & from) != 0,
            "a slot may not go from its state to the wanted one");
  slab.slots.move(slot.index(), to);
}

// All of one slab.
void TierPool::free_slots(SlabIndex index, std::span<const SlotId> slots, States from) {
  Slab& slab = at(index);
  const std::uint32_t free = slab.slots.free();
  const Bytes grantable = slab.grantable_bytes();
  for (const SlotId slot : slots) move(slot, from, SlotState::kFree);
  if (slab.retiring) {
    if (slab.slots.used() == 0) unassign(index.value);
    return;
  }
  ledger_.change_free(slab.domain, slab.grantable_bytes() - grantable);
  relist(index.value, free);
}

void TierPool::relist(std::uint32_t position, std::uint32_t free_before) {
  const Slab& slab = slabs_[position];
  Room& room = room_[{slab.model_class, slab.domain}];
  Room::node_type entry = room.extract({free_before, position});
  if (slab.slots.free() == 0) return;
  const Room::value_type now(slab.slots.free(), position);
  if (entry.empty()) {
    room.insert(now);
  } else {
    entry.value() = now;
    room.insert(std::move(entry));
  }
}

}  // namespace kvd::pool
