#include "kvd/mover/runs.hpp"

#include <algorithm>
#include <utility>

#include "kernels/copy/merge_runs.hpp"

namespace kvd::mover {

std::vector<kernels::CopyExtent> runs_of(const SlabStore& slabs,
                                         std::span<const core::CopySlots::Pair> pairs,
                                         Bytes slot_bytes, bool to_hbm) {
  std::vector<kernels::CopyExtent> extents;
  extents.reserve(pairs.size());
  for (const core::CopySlots::Pair& pair : pairs) {
    const std::uintptr_t hbm = slabs.address(Tier::kHbm, pair.hbm, slot_bytes);
    const std::uintptr_t dram = slabs.address(Tier::kDram, pair.dram, slot_bytes);
    extents.push_back({to_hbm ? hbm : dram, to_hbm ? dram : hbm, slot_bytes});
  }
  return kernels::merge_runs(std::move(extents));
}

std::vector<kernels::CopyExtent> runs_of(const SlabStore& slabs, const core::MoveSlots& move) {
  std::vector<kernels::CopyExtent> extents;
  extents.reserve(move.pairs.size());
  for (const core::MoveSlots::Pair& pair : move.pairs) {
    extents.push_back({slabs.address(Tier::kDram, pair.to, move.slot_bytes),
                       slabs.address(Tier::kDram, pair.from, move.slot_bytes), move.slot_bytes});
  }
  return kernels::merge_runs(std::move(extents));
}

BlockRuns::BlockRuns(const SlabStore& slabs, core::CopyRanges copy, RunLengths& lengths)
    : slabs_(&slabs), copy_(std::move(copy)), lengths_(&lengths) {
  using Block = core::CopyRanges::Block;
  std::sort(copy_.blocks.begin(), copy_.blocks.end(), [&](const Block& a, const Block& b) {
    return copy_.to_hbm ? a.block < b.block : a.slot < b.slot;
  });
}

std::vector<kernels::CopyExtent> BlockRuns::next(Bytes room) {
  std::vector<kernels::CopyExtent> extents;
  for (Bytes bytes; !done() && bytes < room && extents.size() < kMostPieces;) {
    bytes += expand(copy_.blocks[next_++], extents);
  }
  extents = kernels::merge_runs(std::move(extents));
  for (const kernels::CopyExtent& run : extents) lengths_->add(run.length);
  return extents;
}

Bytes BlockRuns::expand(const core::CopyRanges::Block& block,
                        std::vector<kernels::CopyExtent>& into) const {
  const core::BlockLayout& layout = *copy_.layout;
  const std::uintptr_t slot = slabs_->address(Tier::kDram, block.slot, copy_.slot_bytes);
  Bytes sum;
  layout.each_range(block.block, [&](std::size_t position, Bytes offset, Bytes at, Bytes bytes) {
    const std::uintptr_t hbm = slabs_->address(Tier::kHbm, layout.slabs[position]) + offset.size();
    const std::uintptr_t dram = slot + at.size();
    into.push_back({copy_.to_hbm ? hbm : dram, copy_.to_hbm ? dram : hbm, bytes});
    sum += bytes;
  });
  return sum;
}

Bytes length_of(const std::vector<kernels::CopyExtent>& runs) {
  Bytes sum;
  for (const kernels::CopyExtent& run : runs) sum += run.length;
  return sum;
}

}  // namespace kvd::mover
