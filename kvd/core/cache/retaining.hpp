#pragma once

#include <cstdint>

#include "kvd/core/ledger/context.hpp"
#include "kvd/store/cache/placed_rows.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// Cached blocks that engines come back for: for a time they leave DRAM after all others of their
/// domain. A share of what the domain may have bounds them (Config::Retain).
///
/// Source: kvd/DESIGN.md "Engines that place by themselves". Owner: control thread. Errors: none.
/// Cost: O(digests) a call.
class Retaining {
 public:
  Retaining(Context& context, store::Store& store)
      : context_(context), store_(store), rows_(store.cache) {}

  /// Retains all blocks of the command that DRAM has, or none. Returns how many are.
  std::uint64_t retain(const store::KeySpace& space, const CacheBlocks& asked);
  /// At each tick: lets those go whose time is over, and says what made way before its time.
  void let_go_due();

 private:
  Context& context_;
  store::Store& store_;
  store::PlacedRows rows_;
  std::uint64_t told_ = 0;  ///< bytes that made way
};

}  // namespace kvd::core
