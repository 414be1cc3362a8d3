#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/pool/free_slots.hpp"
#include "kvd/pool/slot_state.hpp"

namespace kvd::pool {

/// The slots of one slab: the state of each, and how many are in which.
/// Errors: an index out of range or a state change it does not know is a bug and aborts.
class SlotTable {
 public:
  SlotTable() = default;
  explicit SlotTable(std::uint32_t slots);  ///< all free

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(states_.size()); }
  [[nodiscard]] std::uint32_t free() const { return free_.count(); }
  [[nodiscard]] std::uint32_t used() const { return size() - free(); }
  [[nodiscard]] std::uint32_t count(SlotState state) const;
  [[nodiscard]] SlotState state(std::uint32_t index) const {
    KVD_CHECK(index < states_.size(), "no such slot in the slab");
    return states_[index];
  }

  /// free -> filling. Calls visit(run) for each run of neighbours. Precondition: wanted <= free().
  template <class F>
  void take(std::uint32_t wanted, F visit) {
    free_.take(wanted, [&](SlotRun run) {
      change(run, SlotState::kFree, SlotState::kFilling);
      visit(run);
    });
  }
  /// From any of these states but free, into any state but filling.
  void move(SlotRun run, SlotStates from, SlotState to);

  /// Empty, or what does not add up.
  [[nodiscard]] std::string validate() const;

 private:
  /// Moves slots that are all in the first state into the second.
  void change(SlotRun run, SlotState from, SlotState to);

  std::vector<SlotState> states_;
  std::array<std::uint32_t, kSlotStates> counts_{};
  FreeSlots free_;
};

/// One physical allocation of the tier and everything the pool knows about it.
struct Slab {
  SlabUse use = SlabUse::kClean;
  /// It was unmapped while it was being zeroed, so late writes may have come after the zeros.
  bool written_while_scrubbed = false;
  /// Kept for a region of its domain: a class slab that grants no further slot, or an unassigned
  /// one that came of it.
  bool retiring = false;
  /// Engines of `domain` were given its memory. An engine may keep what it was given, whatever it
  /// says, so every other domain gets the slab with new memory only.
  bool lent = false;
  ClassId model_class;
  /// The domain that holds it; where none does, the one whose bytes it may still contain or whose
  /// engines may still map it (none: zeroed memory that no engine knows).
  DomainId domain;
  RegionId region;
  EngineId owner;    ///< of a region
  Bytes slot_bytes;  ///< of the class
  Bytes slack;       ///< what the slab has left over beyond the last slot of its class
  SlotTable slots;   ///< empty unless use is kClass
  std::vector<EngineId> mapped_by;
  /// It came into its class for this engine, which has yet to map it. Until then nobody takes it
  /// away: two engines that want it would take it from each other for ever.
  EngineId awaited_by;

  /// Counts towards its domain: in use or kept for it, or an engine can still reach its bytes.
  [[nodiscard]] bool held() const { return !unassigned(use) || retiring || !mapped_by.empty(); }
  [[nodiscard]] bool empty_class() const {
    return use == SlabUse::kClass && slots.used() == 0 && !awaited_by;
  }
  [[nodiscard]] Bytes free_bytes() const { return slot_bytes * std::int64_t{slots.free()}; }
  /// An empty slab counts whole: it can change class.
  [[nodiscard]] Bytes grantable_bytes() const {
    if (retiring) return Bytes{};
    return slots.used() == 0 ? free_bytes() + slack : free_bytes();
  }
  /// Empty, or which of its fields contradict each other.
  [[nodiscard]] std::string validate() const;
};

}  // namespace kvd::pool
