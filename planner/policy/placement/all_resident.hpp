#pragma once

#include "planner/policy/placement/placement.hpp"

namespace kvd::planner {

/// All layers of every request stay in HBM. Source: kvd.
/// Owner: immutable.
class AllResidentPolicy final : public PlacementPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "none"; }
  [[nodiscard]] PlacementTraits traits() const override { return {.streams = false}; }
  /// The bound that it gives is the compute time alone.
  [[nodiscard]] Result<PlacementDecision> decide(const PlacementSnapshot& snapshot,
                                                 const PlacementConfig& config,
                                                 const Clock& /*clock*/) const override {
    KVD_TRY(check(snapshot, config));
    return place_alike(snapshot, config, 0);
  }
};

}  // namespace kvd::planner
