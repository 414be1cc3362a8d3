#pragma once

#include "planner/policy/placement/placement.hpp"

namespace kvd::planner {

/// Chooses a distance for each request so that the step is fastest within memory, and a pause where
/// late tokens would still exceed alpha.
/// Source: OrbitFlow sec. 4 in the formulation of MODEL.md.
class OrbitFlowPolicy final : public PlacementPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "orbitflow"; }
  [[nodiscard]] PlacementTraits traits() const override {
    return {.counts_staging = true, .pauses = true};
  }
  [[nodiscard]] Result<PlacementDecision> decide(const PlacementSnapshot& snapshot,
                                                 const PlacementConfig& config,
                                                 const Clock& clock) const override;
};

}  // namespace kvd::planner
