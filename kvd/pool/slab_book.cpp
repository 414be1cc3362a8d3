#include "kvd/pool/slab_book.hpp"

#include <algorithm>

namespace kvd::pool {

Status SlabBook::add_class(ClassId model_class, Bytes slot_bytes) {
  KVD_CHECK(model_class, "class 0 means none");
  if (slot_bytes <= Bytes{} || slot_bytes > capacity_.slab_bytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a slot of " + std::to_string(slot_bytes.value) +
                          " bytes does not fit a slab of " +
                          std::to_string(capacity_.slab_bytes.value) +
                          " bytes: use fewer layers per block or larger slabs");
  }
  const std::int64_t slots = capacity_.slab_bytes / slot_bytes;
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

bool SlabBook::remove_class(ClassId model_class) {
  const bool used = std::any_of(slabs_.begin(), slabs_.end(), [&](const Slab& slab) {
    return slab.use == SlabUse::kClass && slab.model_class == model_class;
  });
  if (used) return false;
  classes_.erase(model_class);
  std::erase_if(room_, [&](const auto& entry) { return entry.first.first == model_class; });
  return true;
}

const SlabBook::Class& SlabBook::class_of(ClassId model_class) const {
  const auto found = classes_.find(model_class);
  KVD_CHECK(found != classes_.end(), "a class is used before add_class");
  return found->second;
}

const SlabBook::Room& SlabBook::room(ClassId model_class, DomainId domain) const {
  static const Room kNone;
  const auto found = room_.find({model_class, domain});
  return found == room_.end() ? kNone : found->second;
}

Positions SlabBook::empty_foreign(ClassId model_class, DomainId domain) const {
  Positions empty;
  for (const auto& [group, room] : room_) {
    if (group.first == model_class || group.second != domain) continue;
    for (const auto& [free, position] : room) {
      if (at(SlabIndex(position)).empty_class()) empty.push_back(position);
    }
  }
  std::sort(empty.begin(), empty.end());
  return empty;
}

void SlabBook::assign(SlabIndex index, ClassId model_class, DomainId domain) {
  const Class& added = class_of(model_class);
  unlist(index);
  change(index, [&](Slab& slab) {
    slab.use = SlabUse::kClass;
    slab.model_class = model_class;
    slab.domain = domain;
    slab.slot_bytes = added.slot_bytes;
    slab.slack = capacity_.slab_bytes - added.slot_bytes * std::int64_t{added.slots_per_slab};
    slab.slots = SlotTable(added.slots_per_slab);
  });
  relist(index, 0);
}

void SlabBook::unassign(SlabIndex index) {
  unlist(index);
  change(index, [](Slab& freed) {
    freed.use = SlabUse::kDirty;
    freed.model_class = ClassId{};
    freed.region = RegionId{};
    freed.owner = freed.awaited_by = EngineId{};
    freed.slot_bytes = freed.slack = Bytes{};
    freed.slots = SlotTable{};
  });
}

void SlabBook::retire(SlabIndex index) {
  const Slab& slab = at(index);
  if (slab.retiring) return;
  KVD_CHECK(slab.use == SlabUse::kClass, "a slab retires that grants no slots");
  unlist(index);
  change(index, [](Slab& kept) { kept.retiring = true; });
  if (slab.slots.used() == 0) unassign(index);
}

void SlabBook::unretire(SlabIndex index) {
  const Slab& slab = at(index);
  if (!slab.retiring) return;
  change(index, [](Slab& freed) {
    freed.retiring = false;
    if (freed.use == SlabUse::kClean && !freed.held() && !freed.lent) freed.domain = DomainId{};
  });
  if (slab.use == SlabUse::kClass) relist(index, 0);
}

void SlabBook::take(SlabIndex index, std::uint32_t wanted, std::vector<SlotId>& slots) {
  Slab& slab = writable(index);
  const std::uint32_t free = slab.slots.free();
  const Bytes grantable = slab.grantable_bytes();
  slab.slots.take(std::min(wanted, free), [&](SlotRun run) {
    std::uint32_t next = SlotId(index, run.first).value;
    slots.resize(slots.size() + run.count);
    std::generate(slots.end() - run.count, slots.end(), [&next] { return SlotId(next++); });
  });
  ledger_.change_free(slab.domain, slab.grantable_bytes() - grantable);
  relist(index, free);
}

void SlabBook::free(SlabIndex index, Slots slots, SlotStates from) {
  Slab& slab = writable(index);
  const std::uint32_t free = slab.slots.free();
  const Bytes grantable = slab.grantable_bytes();
  each_run(slots, [&](SlabIndex, SlotRun run) { slab.slots.move(run, from, SlotState::kFree); });
  if (slab.retiring) {
    if (slab.slots.used() == 0) unassign(index);
    return;
  }
  ledger_.change_free(slab.domain, slab.grantable_bytes() - grantable);
  relist(index, free);
}

void SlabBook::relist(SlabIndex index, std::uint32_t free_before) {
  const Slab& slab = at(index);
  Room& room = room_[{slab.model_class, slab.domain}];
  Room::node_type entry = room.extract({free_before, index.value});
  if (slab.slots.free() == 0) return;
  const Room::value_type now(slab.slots.free(), index.value);
  if (entry.empty()) {
    room.insert(now);
  } else {
    entry.value() = now;
    room.insert(std::move(entry));
  }
}

void SlabBook::unlist(SlabIndex index) {
  const Slab& slab = at(index);
  if (slab.use != SlabUse::kClass || slab.retiring) return;
  const auto group = room_.find({slab.model_class, slab.domain});
  if (group == room_.end()) return;
  group->second.erase({slab.slots.free(), index.value});
  if (group->second.empty()) room_.erase(group);  // domains come and go
}

std::string SlabBook::validate() const {
  for (std::uint32_t position = begin(); position < end(); ++position) {
    const std::string broken = validate_slab(at(SlabIndex(position)));
    if (!broken.empty()) return "slab " + std::to_string(position) + ": " + broken;
  }
  if (std::string broken = validate_room(); !broken.empty()) return broken;
  if (ledger_ != Ledger(slabs_)) return "the sums per domain differ from a fresh count";
  return {};
}

std::string SlabBook::validate_slab(const Slab& slab) const {
  if (std::string broken = slab.validate(); !broken.empty()) return broken;
  if (slab.use != SlabUse::kClass) return {};
  const auto known = classes_.find(slab.model_class);
  if (known == classes_.end()) return "its class is unknown";
  const Bytes divided = slab.slack + slab.slot_bytes * std::int64_t{slab.slots.size()};
  if (slab.slots.size() != known->second.slots_per_slab ||
      slab.slot_bytes != known->second.slot_bytes || divided != capacity_.slab_bytes) {
    return "it is not divided as its class says";
  }
  return {};
}

std::string SlabBook::validate_room() const {
  std::size_t listed = 0;
  for (const auto& [group, room] : room_) listed += room.size();
  for (std::uint32_t position = begin(); position < end(); ++position) {
    const Slab& slab = at(SlabIndex(position));
    if (slab.slots.free() == 0 || slab.retiring) continue;
    if (!room(slab.model_class, slab.domain).contains({slab.slots.free(), position})) {
      return "slab " + std::to_string(position) + ": its class does not list its free slots";
    }
    --listed;
  }
  return listed == 0 ? std::string() : "a class lists free slots of a slab that has none for it";
}

}  // namespace kvd::pool
