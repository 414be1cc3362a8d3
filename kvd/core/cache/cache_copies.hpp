#pragma once

#include <cstddef>
#include <map>

#include "kvd/core/ledger/budget.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// Copies in DRAM of cached blocks that HBM alone has. A request's blocks are copied while it runs
/// (dram_copies.hpp); what its end came too soon for is copied here, so that HBM can give it up
/// without a loss and without anybody waiting. Only while rotation.eager is set, in the background,
/// and where DRAM has room or blocks that save less.
///
/// Source: kvd/DESIGN.md "Blocks that are found again".
///
/// Owner: control thread. Cost: O(rows that begin or end).
class CacheCopies {
 public:
  CacheCopies(Context& context, store::Store& store, Budget& budget)
      : context_(context), store_(store), budget_(budget) {}

  /// Orders copies, a quarter of what a step may move under way at most.
  void make_ahead();
  /// False: it was no copy of these.
  [[nodiscard]] bool on_copy(const CopyFinished& finished);
  /// DRAM slots of copies under way.
  [[nodiscard]] std::size_t slots() const;

 private:
  /// `make_way`: how many others may leave DRAM for it. False: there is no room, or not yet.
  [[nodiscard]] bool start(store::RowId row, std::size_t& make_way);

  Context& context_;
  store::Store& store_;
  Budget& budget_;
  std::map<Ticket, store::RowCopy> copies_;
  Bytes under_way_;
  std::size_t tries_ = 0;  ///< to make room for the row that waits
};

}  // namespace kvd::core
