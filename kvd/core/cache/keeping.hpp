#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "kvd/core/ledger/classes.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/store/cache/kept_rows.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// Rows that the next daemon finds again, in DRAM or in HBM alone. Keeping has the shell write down
/// what they are, and strike them out before their slots are used for anything else. It also takes
/// over what the previous daemon left.
///
/// Source: kvd/DESIGN.md "Blocks that outlive kvd".
///
/// Owner: control thread. Cost: O(layer groups) a row that comes to a tier or leaves it.
class Keeping {
 public:
  Keeping(Context& context, store::Store& store, Classes& classes);

  /// Tells the shell what the current event has changed. Slots whose bytes end come before all
  /// other effects of the event.
  void tell();
  /// True: memory that could not make way meanwhile can now, so requests that wait may find some.
  [[nodiscard]] bool on_kept(const RowsKept& kept);
  void adopt(const AdoptRows& left);

 private:
  /// Slabs that were taken over from the previous daemon.
  struct Slabs {
    std::map<SlabIndex, store::Taker> owners;  ///< the owners whose rows are in them
    std::set<SlotId> free;                     ///< slots that no row has yet
  };
  using SlabsByTier = std::array<Slabs, kTiers>;
  /// Rows of classes that can exist, each after its parent.
  [[nodiscard]] std::vector<store::KeptRow> fitting(const AdoptRows& left);
  /// Whether the class can exist, and its blocks in HBM are where engines of its space look for
  /// them.
  [[nodiscard]] bool fits(const KeptBlocks& blocks) const;
  [[nodiscard]] SlabsByTier take_slabs(const AdoptRows& left,
                                       const std::vector<store::KeptRow>& rows);
  /// False: not all slots of the row are there for it.
  [[nodiscard]] static bool claim(const store::KeptRow& row, Slabs& slabs);
  void note_adopted();
  /// Nobody will find these rows.
  void forget(const std::vector<store::KeptRow>& rows, std::uint64_t& counter);

  Context& context_;
  store::Store& store_;
  Classes& classes_;
  store::KeptRows rows_;
  Ticket open_;  ///< ticket of what is being written down; none: nothing is
};

}  // namespace kvd::core
