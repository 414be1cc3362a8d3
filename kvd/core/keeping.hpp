#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "kvd/core/classes.hpp"
#include "kvd/core/context.hpp"
#include "kvd/store/kept_rows.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// Rows in DRAM that the next daemon finds again: has the shell write down what they are, and say
/// that no more before their slots are used for anything else; and takes over what the daemon
/// before has left.
///
/// Source: kvd/DESIGN.md "Blocks that outlive kvd".
///
/// Owner: control thread. Cost: O(layer groups) a row that comes to DRAM or leaves it.
class Keeping {
 public:
  Keeping(Context& context, store::Store& store, Classes& classes);

  /// What the event in hand has changed. Slots whose bytes end come before all its other effects.
  void tell();
  /// True: slots that were given up meanwhile are free now.
  [[nodiscard]] bool on_kept(const RowsKept& kept);
  void adopt(const AdoptRows& left);

 private:
  /// Slabs that were taken over.
  struct Slabs {
    std::map<SlabIndex, store::Taker> owners;  ///< those that rows are in
    std::set<SlotId> free;                     ///< slots that no row has yet
  };
  /// Rows whose class there can be, each after its parent.
  [[nodiscard]] std::vector<store::KeptRow> fitting(const AdoptRows& left);
  [[nodiscard]] Slabs take_slabs(const AdoptRows& left, const std::vector<store::KeptRow>& rows);
  /// False: the row's slots are not all there for it.
  [[nodiscard]] static bool claim(const store::KeptRow& row, Slabs& slabs);
  /// Nobody will find them.
  void forget(const std::vector<store::KeptRow>& rows, std::uint64_t& counter);

  Context& context_;
  store::Store& store_;
  Classes& classes_;
  store::KeptRows rows_;
  Ticket open_;  ///< of what is being written down; none: nothing is
};

}  // namespace kvd::core
