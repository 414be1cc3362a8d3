#pragma once

#include <span>

#include "planner/model/latency.hpp"

namespace kvd::planner {

/// How much staging a plan reserves.
enum class BufferRule {
  /// One staging set of b_r blocks for each request that streams anything. This is what a step
  /// really needs.
  kStrict,
  /// OrbitFlow's Eq. 1, the largest need of one layer. It counts too little and serves comparisons
  /// only.
  kEq1,
};

/// What a placement occupies in HBM and moves over the link, in layer-blocks.
struct PlacementMemory {
  Blocks resident;
  Blocks staging_strict;
  Blocks staging_eq1;
  Blocks fetched;

  [[nodiscard]] Blocks staging(BufferRule rule) const {
    return rule == BufferRule::kStrict ? staging_strict : staging_eq1;
  }
};

/// With `open_blocks`, a streaming request also keeps the open block of each offloaded layer.
[[nodiscard]] PlacementMemory placement_memory(std::size_t layers,
                                               std::span<const StreamedRequest> requests,
                                               bool open_blocks = false);

}  // namespace kvd::planner
