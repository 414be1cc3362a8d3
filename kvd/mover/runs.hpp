#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ipc/vocabulary/units.hpp"
#include "kernels/copy/copy_extent.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/mover/counters.hpp"
#include "kvd/mover/slab_store.hpp"

namespace kvd::mover {

/// The copies of whole slots as copies of bytes, in the longest runs.
[[nodiscard]] std::vector<kernels::CopyExtent> runs_of(const SlabStore& slabs,
                                                       std::span<const core::CopySlots::Pair> pairs,
                                                       Bytes slot_bytes, bool to_hbm);

/// The same for copies within DRAM.
[[nodiscard]] std::vector<kernels::CopyExtent> runs_of(const SlabStore& slabs,
                                                       const core::MoveSlots& move);

/// The same for blocks of regions, computed as they are copied: 8 bytes a block are kept, however
/// many pieces it has. The slab store and the counter must outlive it.
class BlockRuns {
 public:
  BlockRuns(const SlabStore& slabs, core::CopyRanges copy, RunLengths& lengths);

  [[nodiscard]] bool done() const { return next_ == copy_.blocks.size(); }
  /// The runs of the next blocks, up to `room` bytes or kMostPieces, but one block at least. Blocks
  /// are taken in the order of the written side, so neighbours become one run. Precondition: not
  /// done.
  [[nodiscard]] std::vector<kernels::CopyExtent> next(Bytes room);

 private:
  Bytes expand(const core::CopyRanges::Block& block, std::vector<kernels::CopyExtent>& into) const;

  const SlabStore* slabs_;
  core::CopyRanges copy_;
  RunLengths* lengths_;
  std::size_t next_ = 0;
};

/// Pieces in a burst, at most: each costs the control thread and the device, however short it is.
constexpr std::size_t kMostPieces = 2048;

[[nodiscard]] Bytes length_of(const std::vector<kernels::CopyExtent>& runs);

}  // namespace kvd::mover
