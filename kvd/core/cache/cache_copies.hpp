#pragma once

#include <cstddef>
#include <map>

#include "kvd/core/ledger/budget.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// Copies to DRAM cached blocks that only HBM has. A request's blocks are copied while it runs
/// (dram_copies.hpp); blocks of a request that ended before that are copied here, so that HBM can
/// give them up without loss and nobody has to wait. It copies in the background, and where DRAM
/// has room or holds blocks that save less.
///
/// Source: kvd/DESIGN.md "Blocks that are found again".
///
/// Owner: control thread. Cost: O(rows that begin or end).
class CacheCopies {
 public:
  CacheCopies(Context& context, store::Store& store, Budget& budget)
      : context_(context), store_(store), budget_(budget) {}

  /// Orders copies. At most a quarter of what a step may move is under way.
  void make_ahead();
  /// False: the copy is not one of these.
  [[nodiscard]] bool on_copy(const CopyFinished& finished);
  [[nodiscard]] bool idle() const { return copies_.empty(); }
  /// DRAM slots of copies under way.
  [[nodiscard]] std::size_t slots() const;

 private:
  /// `make_way`: how many other rows may leave DRAM for this one. False: there is no room, or not
  /// yet.
  [[nodiscard]] bool start(store::RowId row, std::size_t& make_way);

  Context& context_;
  store::Store& store_;
  Budget& budget_;
  std::map<Ticket, store::RowCopy> copies_;
  Bytes under_way_;
  std::size_t tries_ = 0;  ///< to make room for the row that waits
};

}  // namespace kvd::core
