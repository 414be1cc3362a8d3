#pragma once

#include <span>
#include <vector>

#include "ipc/vocabulary/units.hpp"
#include "kernels/copy/copy_extent.hpp"
#include "kvd/core/effects.hpp"
#include "kvd/mover/slab_store.hpp"

namespace kvd::mover {

/// The copies of whole slots as copies of bytes, in the longest runs.
[[nodiscard]] std::vector<kernels::CopyExtent> runs_of(const SlabStore& slabs,
                                                       std::span<const core::CopySlots::Pair> pairs,
                                                       Bytes slot_bytes, bool to_hbm);

/// The same of ranges of regions.
[[nodiscard]] std::vector<kernels::CopyExtent> runs_of(const SlabStore& slabs,
                                                       const core::CopyRanges& copy);

/// The same for copies within DRAM.
[[nodiscard]] std::vector<kernels::CopyExtent> runs_of(const SlabStore& slabs,
                                                       const core::MoveSlots& move);

[[nodiscard]] Bytes length_of(const std::vector<kernels::CopyExtent>& runs);

}  // namespace kvd::mover
