#include "kvd/mover/runs.hpp"

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

std::vector<kernels::CopyExtent> runs_of(const SlabStore& slabs, const core::CopyRanges& copy) {
  std::vector<kernels::CopyExtent> extents;
  extents.reserve(copy.ranges.size());
  for (const core::CopyRanges::Range& range : copy.ranges) {
    const std::uintptr_t hbm = slabs.address(Tier::kHbm, range.slab) + range.offset.size();
    const std::uintptr_t dram =
        slabs.address(Tier::kDram, range.slot, copy.slot_bytes) + range.at.size();
    extents.push_back({copy.to_hbm ? hbm : dram, copy.to_hbm ? dram : hbm, range.bytes});
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

Bytes length_of(const std::vector<kernels::CopyExtent>& runs) {
  Bytes sum;
  for (const kernels::CopyExtent& run : runs) sum += run.length;
  return sum;
}

}  // namespace kvd::mover
