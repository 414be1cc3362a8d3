#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/pool/tier_pool.hpp"
#include "kvd/store/memory/device_pools.hpp"

namespace kvd::store {

/// Slots that their owner gave up while something may still touch them, and what that is.
struct Hold {
  std::vector<Ticket> copies{};  ///< open copies and streams that read or write the slots
  EngineId engine{};             ///< may use the HBM slots until it has finished `iteration`
  std::uint64_t iteration = 0;   ///< counted as in Holds::iteration_finished
  DomainId domain;
  Bytes slot_bytes;
  std::vector<SlotId> hbm{};
  std::vector<SlotId> dram{};  ///< no engine maps DRAM: only copies touch these
  bool dirty = false;          ///< the engine died; Holds finds out for one that it knows
};

/// HBM slots of one device, in state quarantined, that nothing touches any more: to be zeroed
/// before they are granted again.
struct DirtySlots {
  DomainId domain;
  DeviceId device;
  Bytes slot_bytes;
  std::vector<SlotId> slots;
};

/// Says of every slot that is given up but not free yet why it is not: a copy touches it, the
/// engine's running iteration may, or the engine is dying and may until its process is gone. The
/// reasons end in this order, and a slot is freed (after a death: handed out as dirty) when the
/// last one has.
///
/// Source: kvd design (DESIGN.md, safety rules 3, 4 and 8).
///
/// Owner: control thread. Errors: none. Cost: each call walks the holds, of which there are few;
/// what copies read O(log of it) a slot.
class Holds {
 public:
  Holds(DevicePools& hbm, pool::TierPool& dram) : hbm_(hbm), dram_(dram) {}

  /// Holds the slots (filling, open or sealed) for as long as needed; frees at once what nothing
  /// touches.
  void add(Hold hold);
  /// The copy reads slots that their owners keep. A slot that is given up before the copy has ended
  /// waits for it.
  void copy_reads(Ticket copy, Tier tier, const std::vector<SlotId>& slots);
  /// A copy reads slots of the tier while their owners keep them.
  [[nodiscard]] bool reads(Tier tier) const {
    return !read_[static_cast<std::size_t>(tier)].empty();
  }
  /// A copy reads this slot while its owner keeps it.
  [[nodiscard]] bool reads(Tier tier, SlotId slot) const {
    const Readers& readers = read_[static_cast<std::size_t>(tier)];
    const auto first = readers.lower_bound({slot, Ticket()});
    return first != readers.end() && first->first == slot;
  }

  /// From here on until engine_gone the engine may touch what it was granted.
  void engine_came(EngineId engine) { engines_[engine] = {}; }
  /// `iteration` and all before it. Of a tensor-parallel group: all ranks have.
  void iteration_finished(EngineId engine, std::uint64_t iteration);
  /// What the engine may still touch, now or once copies have ended, waits for engine_gone.
  void engine_dying(EngineId engine);
  /// Its process is gone, or it said goodbye after its last iteration.
  void engine_gone(EngineId engine);
  void copy_ended(Ticket ticket);

  /// The slots that became dirty since the last call, one entry for each domain, device and slot
  /// size.
  [[nodiscard]] std::vector<DirtySlots> take_dirty();

  [[nodiscard]] const std::vector<Hold>& all() const { return holds_; }
  /// The hold waits for a death and nothing else, so its slots do not come back before.
  [[nodiscard]] static bool quarantined(const Hold& hold) {
    return hold.dirty && hold.copies.empty();
  }
  /// Slots of the tier that are held, or dirty and not taken yet.
  [[nodiscard]] std::size_t slots(Tier tier) const;
  /// Empty while every held slot is in the state that its reason asks for; else the fault in words.
  [[nodiscard]] std::string validate() const;

 private:
  using Readers = std::set<std::pair<SlotId, Ticket>>;
  struct Life {
    std::uint64_t finished = 0;
    bool dying = false;
  };
  /// No copy touches the slots any more. False while the engine may.
  [[nodiscard]] bool let_go(Hold& hold);
  /// Lets go what `ended` names and no copy touches.
  template <class Ended>
  void let_go_where(Ended ended);
  void take_out_dirty(Hold& hold);
  /// Takes the slots out that copies read, into a hold of their own.
  [[nodiscard]] Hold take_out_read(Hold& hold) const;

  DevicePools& hbm_;
  pool::TierPool& dram_;
  std::map<EngineId, Life> engines_;  ///< those that may touch slots
  std::vector<Hold> holds_;
  /// Holds by copies, while the slots' owners keep them.
  std::array<Readers, kTiers> read_;
  std::map<Ticket, std::array<std::vector<SlotId>, kTiers>> reads_of_;  ///< the same by copy
  std::vector<DirtySlots> dirty_;
};

}  // namespace kvd::store
