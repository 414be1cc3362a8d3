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

/// Rows that the next daemon finds again, in DRAM or in HBM alone: has the shell write down what
/// they are, and say that no more before their slots are used for anything else; and takes over
/// what the daemon before has left.
///
/// Source: kvd/DESIGN.md "Blocks that outlive kvd".
///
/// Owner: control thread. Cost: O(layer groups) a row that comes to a tier or leaves it.
class Keeping {
 public:
  Keeping(Context& context, store::Store& store, Classes& classes);

  /// What the event in hand has changed. Slots whose bytes end come before all its other effects.
  void tell();
  /// True: who waits for memory may find some now that could not make way meanwhile.
  [[nodiscard]] bool on_kept(const RowsKept& kept);
  void adopt(const AdoptRows& left);

 private:
  /// Slabs that were taken over.
  struct Slabs {
    std::map<SlabIndex, store::Taker> owners;  ///< those that rows are in
    std::set<SlotId> free;                     ///< slots that no row has yet
  };
  using SlabsByTier = std::array<Slabs, kTiers>;
  /// Rows whose class there can be, each after its parent.
  [[nodiscard]] std::vector<store::KeptRow> fitting(const AdoptRows& left);
  /// Whether its class can be, and its blocks in HBM are where engines of its space look for them.
  [[nodiscard]] bool fits(const KeptBlocks& blocks) const;
  [[nodiscard]] SlabsByTier take_slabs(const AdoptRows& left,
                                       const std::vector<store::KeptRow>& rows);
  /// False: the row's slots are not all there for it.
  [[nodiscard]] static bool claim(const store::KeptRow& row, Slabs& slabs);
  void note_adopted();
  /// Nobody will find them.
  void forget(const std::vector<store::KeptRow>& rows, std::uint64_t& counter);

  Context& context_;
  store::Store& store_;
  Classes& classes_;
  store::KeptRows rows_;
  Ticket open_;  ///< of what is being written down; none: nothing is
};

}  // namespace kvd::core
