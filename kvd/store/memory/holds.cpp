#include "kvd/store/memory/holds.hpp"

#include <algorithm>
#include <utility>

namespace kvd::store {

using pool::SlotState;

namespace {

void drain(pool::TierPool& pool, pool::Slots slots) {
  std::vector<SlotId> others;  // may drain already
  others.reserve(slots.size());
  for (const SlotId slot : slots) {
    if (pool.state(slot) != SlotState::kDraining) others.push_back(slot);
  }
  pool.drain(others);
}

void drain(DevicePools& pools, pool::Slots slots) {
  pools.each(slots, [](pool::TierPool& pool, auto there) { drain(pool, there); });
}

template <class Pools>
bool all_in(const Pools& pools, const std::vector<SlotId>& slots, SlotState state) {
  return std::all_of(slots.begin(), slots.end(),
                     [&](SlotId slot) { return pools.state(slot) == state; });
}

}  // namespace

void Holds::take_out_dirty(Hold& hold) {
  for (const SlotId slot : hold.hbm) {
    const DeviceId device = hbm_.device_of(slot);
    const auto same = [&](const DirtySlots& dirty) {
      return dirty.domain == hold.domain && dirty.device == device &&
             dirty.slot_bytes == hold.slot_bytes;
    };
    auto it = std::find_if(dirty_.begin(), dirty_.end(), same);
    if (it == dirty_.end()) it = dirty_.insert(it, {hold.domain, device, hold.slot_bytes, {}});
    it->slots.push_back(slot);
  }
}

bool Holds::let_go(Hold& hold) {
  dram_.release(std::exchange(hold.dram, {}));
  if (hold.hbm.empty()) return true;
  const auto engine = engines_.find(hold.engine);
  const bool here = engine != engines_.end();
  if (hold.dirty) {
    for (const SlotId slot : hold.hbm) {
      if (hbm_.state(slot) != SlotState::kQuarantined) hbm_.with(slot).quarantine(slot);
    }
    if (!here) take_out_dirty(hold);
    return !here;
  }
  if (here && hold.iteration > engine->second.finished) {
    drain(hbm_, hold.hbm);
    return false;
  }
  hbm_.release(hold.hbm);
  return true;
}

void Holds::copy_reads(Ticket copy, Tier tier, const std::vector<SlotId>& slots) {
  if (slots.empty()) return;
  std::vector<SlotId>& of_copy = reads_of_[copy][static_cast<std::size_t>(tier)];
  for (const SlotId slot : slots) {
    if (read_[static_cast<std::size_t>(tier)].emplace(slot, copy).second) of_copy.push_back(slot);
  }
}

Hold Holds::take_out_read(Hold& hold) const {
  Hold read = hold;
  read.hbm.clear();
  read.dram.clear();
  const auto take_out = [&](Tier tier, std::vector<SlotId>& from, std::vector<SlotId>& to) {
    const Readers& readers = read_[static_cast<std::size_t>(tier)];
    if (readers.empty()) return;
    std::erase_if(from, [&](SlotId slot) {
      auto reader = readers.lower_bound({slot, Ticket()});
      const bool is_read = reader != readers.end() && reader->first == slot;
      if (is_read) to.push_back(slot);
      for (; reader != readers.end() && reader->first == slot; ++reader) {
        read.copies.push_back(reader->second);
      }
      return is_read;
    });
  };
  take_out(Tier::kHbm, hold.hbm, read.hbm);
  take_out(Tier::kDram, hold.dram, read.dram);
  std::sort(read.copies.begin(), read.copies.end());
  read.copies.erase(std::unique(read.copies.begin(), read.copies.end()), read.copies.end());
  return read;
}

void Holds::add(Hold hold) {
  const auto engine = engines_.find(hold.engine);
  hold.dirty = hold.dirty || (engine != engines_.end() && engine->second.dying);
  if (Hold read = take_out_read(hold); !read.hbm.empty() || !read.dram.empty()) {
    drain(hbm_, read.hbm);
    drain(dram_, read.dram);
    holds_.push_back(std::move(read));
  }
  if (hold.hbm.empty() && hold.dram.empty()) return;
  if (!hold.copies.empty()) {
    drain(hbm_, hold.hbm);
    drain(dram_, hold.dram);
  } else if (let_go(hold)) {
    return;
  }
  holds_.push_back(std::move(hold));
}

template <class Ended>
void Holds::let_go_where(Ended ended) {
  std::erase_if(holds_,
                [&](Hold& hold) { return ended(hold) && hold.copies.empty() && let_go(hold); });
}

void Holds::copy_ended(Ticket ticket) {
  const auto read = reads_of_.extract(ticket);
  for (std::size_t tier = 0; !read.empty() && tier < kTiers; ++tier) {
    for (const SlotId slot : read.mapped()[tier]) read_[tier].erase({slot, ticket});
  }
  let_go_where([&](Hold& hold) { return std::erase(hold.copies, ticket) > 0; });
}

void Holds::iteration_finished(EngineId engine, std::uint64_t iteration) {
  const auto it = engines_.find(engine);
  if (it == engines_.end() || it->second.finished == iteration) return;
  it->second.finished = iteration;
  let_go_where([&](const Hold& hold) { return hold.engine == engine; });
}

void Holds::engine_dying(EngineId engine) {
  const auto it = engines_.find(engine);
  if (it == engines_.end()) return;
  it->second.dying = true;
  let_go_where([&](Hold& hold) {
    hold.dirty = hold.dirty || hold.engine == engine;
    return hold.engine == engine;
  });
}

void Holds::engine_gone(EngineId engine) {
  if (engines_.erase(engine) == 0) return;
  let_go_where([&](const Hold& hold) { return hold.engine == engine; });
}

std::vector<DirtySlots> Holds::take_dirty() { return std::exchange(dirty_, {}); }

std::size_t Holds::slots(Tier tier) const {
  std::size_t sum = 0;
  for (const Hold& hold : holds_) sum += (tier == Tier::kHbm ? hold.hbm : hold.dram).size();
  if (tier != Tier::kHbm) return sum;
  for (const DirtySlots& dirty : dirty_) sum += dirty.slots.size();
  return sum;
}

std::string Holds::validate() const {
  for (const Hold& hold : holds_) {
    const SlotState state = quarantined(hold) ? SlotState::kQuarantined : SlotState::kDraining;
    if (!all_in(hbm_, hold.hbm, state)) return "a held HBM slot is not " + std::string(name(state));
    if (!all_in(dram_, hold.dram, SlotState::kDraining)) return "a held DRAM slot is not draining";
    if (hold.copies.empty() && !engines_.contains(hold.engine)) return "slots are held for nothing";
  }
  for (const DirtySlots& dirty : dirty_) {
    if (!all_in(hbm_, dirty.slots, SlotState::kQuarantined)) return "a dirty slot is in use";
  }
  return {};
}

}  // namespace kvd::store
