#pragma once

#include <span>
#include <vector>

#include "planner/policy/placement/placement.hpp"

namespace kvd::planner {

/// A paused request's layers (1-based, ascending) that are still in HBM, and their size.
struct PausedLayers {
  Blocks blocks;
  std::vector<std::int32_t> resident;
};

struct Eviction {
  std::size_t request;
  std::int32_t layer;
  friend bool operator==(const Eviction&, const Eviction&) = default;
};

/// Which layers of paused requests make room for `needed` layer-blocks, in order of leaving: each
/// time the last layer of the request that has given least so far, so that the need is spread
/// evenly and a resumed request finds its first layers still there. All of them where that does not
/// suffice.
/// Source: OrbitFlow sec. 3.4: on demand, layer by layer, the last first.
[[nodiscard]] std::vector<Eviction> evict_paused(std::span<const PausedLayers> paused,
                                                 Blocks needed);

}  // namespace kvd::planner
