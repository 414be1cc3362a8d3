#include "kvd/pool/slab.hpp"

#include <algorithm>

#include "ipc/vocabulary/check.hpp"

namespace kvd::pool {
namespace {

std::size_t position(SlotState state) { return static_cast<std::size_t>(state); }

std::string validate_class(const Slab& slab) {
  if (!slab.model_class || !slab.domain) return "a class slab has no class or no domain";
  if (slab.region || slab.owner) return "a class slab belongs to a region";
  if (slab.retiring && slab.slots.used() == 0) return "an empty slab is still retiring";
  return slab.slots.validate();
}

std::string validate_unassigned(const Slab& slab) {
  if (slab.region || slab.owner) return "an unassigned slab belongs to a region";
  // If nobody knows whose bytes an earlier daemon has left, they are zeroed before the slab is
  // handed out.
  const bool old_bytes = slab.use == SlabUse::kDirty || slab.use == SlabUse::kScrubbing;
  const bool known = slab.held() || slab.lent;
  if (known && !slab.domain) return "a slab that may hold bytes does not know whose";
  if (!known && !old_bytes && slab.domain) return "a clean slab that nobody knows has a domain";
  return {};
}

}  // namespace

SlotTable::SlotTable(std::uint32_t slots) : states_(slots, SlotState::kFree), free_(slots) {
  counts_[position(SlotState::kFree)] = slots;
}

std::uint32_t SlotTable::count(SlotState state) const { return counts_[position(state)]; }

void SlotTable::move(SlotRun run, SlotStates from, SlotState to) {
  KVD_CHECK((from & any_of(SlotState::kFree)) == 0 && to != SlotState::kFilling,
            "a slot leaves free, or enters filling, by allocation only");
  KVD_CHECK(run.first < size() && run.count <= size() - run.first, "no such slot in the slab");
  const auto end = states_.begin() + run.first + run.count;
  for (auto at = states_.begin() + run.first; at != end;) {
    const SlotState state = *at;
    KVD_CHECK((any_of(state) & from) != 0, "a slot may not go from its state to the wanted one");
    const auto other = std::find_if(at, end, [state](SlotState each) { return each != state; });
    const auto first = static_cast<std::uint32_t>(at - states_.begin());
    change({first, static_cast<std::uint32_t>(other - at)}, state, to);
    at = other;
  }
  if (to == SlotState::kFree) free_.put(run);
}

void SlotTable::change(SlotRun run, SlotState from, SlotState to) {
  std::fill_n(states_.begin() + run.first, run.count, to);
  counts_[position(from)] -= run.count;
  counts_[position(to)] += run.count;
}

std::string SlotTable::validate() const {
  std::array<std::uint32_t, kSlotStates> counts{};
  for (std::uint32_t i = 0; i < size(); ++i) {
    ++counts[position(states_[i])];
    const bool is_free = states_[i] == SlotState::kFree;
    if (is_free != free_.contains(i)) return "the free list contradicts a slot's state";
  }
  if (counts != counts_) return "the slots in each state are miscounted";
  if (free_.count() != counts[position(SlotState::kFree)]) return "the free list is miscounted";
  return {};
}

std::string Slab::validate() const {
  if (use != SlabUse::kClass &&
      (model_class || slots.size() != 0 || slot_bytes != Bytes{} || slack != Bytes{})) {
    return "a slab without a class has slots";
  }
  if (written_while_scrubbed && use != SlabUse::kScrubbing)
    return "a late write outlived scrubbing";
  if (use == SlabUse::kClass) return validate_class(*this);
  if (unassigned(use)) return validate_unassigned(*this);
  if (retiring) return "a leased slab is retiring";
  return region && domain ? std::string() : "a region's slab has no region or no domain";
}

}  // namespace kvd::pool
