#pragma once

#include <span>
#include <vector>

#include "planner/policy/placement.hpp"

namespace kvd::planner {

/// The running batch and those paused, in order of pausing. Whom to pause: pause_victim().
struct ResumeQuestion {
  PlacementSnapshot running;
  std::vector<PlacementRequest> paused;
  /// A request of the batch has ended since the last pause.
  bool ended_since = false;
};

struct ResumeDecision {
  /// The first so many of the paused come back.
  std::size_t resumed = 0;
  /// For the batch with them; nothing where nobody comes back.
  std::optional<PlacementDecision> plan;
};

/// Who comes back: once a request has ended, one paused request after the other, the longest paused
/// first, as long as the batch with it has a feasible plan. With nobody running the first comes
/// back at once, feasible or not, as alone it can only get slower by waiting.
/// Source: OrbitFlow sec. 3.4: both conditions keep a request from going back and forth;
///         the order, and that nobody overtakes, are ours (no starvation).
/// Errors: InvalidArgument as the policy's decide().
[[nodiscard]] Result<ResumeDecision> decide_resume(const ResumeQuestion& question,
                                                   const PlacementPolicy& policy,
                                                   const PlacementConfig& config,
                                                   const Clock& clock);

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

/// Which layers of paused requests make room for `needed` layer-blocks, in order of leaving: the
/// last layer of whoever has given least so far, so that the need is spread evenly and a resume
/// finds its first layers still there. All of them where that does not suffice.
/// Source: OrbitFlow sec. 3.4: on demand, layer by layer, the last first.
[[nodiscard]] std::vector<Eviction> evict_paused(std::span<const PausedLayers> paused,
                                                 Blocks needed);

}  // namespace kvd::planner
