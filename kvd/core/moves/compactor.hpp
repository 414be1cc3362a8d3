#pragma once

#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/store/blocks/compaction.hpp"

namespace kvd::core {

/// Moves blocks within DRAM, so that a class that lacks a slab there gets one. The store says which
/// (store/compaction.hpp). This class adds what only the requests know: who has the blocks, and
/// which copies touch them.
///
/// Source: kvd/DESIGN.md "Compaction".
///
/// Owner: control thread. Cost: O(1) while no slab is wanted; a round O(blocks in DRAM).
class Compactor : private Part {
 public:
  explicit Compactor(Ground& ground) : Part(ground), budget_(ground.budget) {}

  /// Starts the next round if a slab is wanted and none is under way. A round may move as much as
  /// copies ahead may take of a step's budget, because it waits in the same queue.
  void start();
  /// Records the new places of the blocks.
  void finish(const store::Compaction::Round& round, bool ok);

 private:
  [[nodiscard]] std::vector<store::Movable> movable(const std::vector<SlabIndex>& slabs) const;

  Budget& budget_;
};

}  // namespace kvd::core
