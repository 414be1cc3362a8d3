#pragma once

#include "planner/policy/placement/placement.hpp"

namespace kvd::planner {

/// The published baselines: one placement for all requests of the batch.
/// Source: OrbitFlow sec. 6 and its published code, in our distance k (the code's d = k - 1).
enum class UniformRule {
  kDeepSpeed,         ///< k = 1: every layer from DRAM
  kFlexGen,           ///< k = 2, fixed
  kFlexGenPlus,       ///< k from memory, each request counted as at least as long as the mean
  kDynamicHeuristic,  ///< k from memory and actual lengths
  kSloAware,          ///< k from compute over transfer time (Select-N)
  kBatchUniform,      ///< the fastest k that fits
};

/// Owner: immutable.
class UniformPlacementPolicy final : public PlacementPolicy {
 public:
  UniformPlacementPolicy(std::string_view name, UniformRule rule) : name_(name), rule_(rule) {}
  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] PlacementTraits traits() const override {
    return {.counts_staging = rule_ == UniformRule::kBatchUniform};
  }
  /// The bound that it gives is the compute time alone.
  [[nodiscard]] Result<PlacementDecision> decide(const PlacementSnapshot& snapshot,
                                                 const PlacementConfig& config,
                                                 const Clock& clock) const override;

 private:
  [[nodiscard]] std::int32_t distance(const PlacementSnapshot& snapshot,
                                      const PlacementConfig& config) const;
  std::string_view name_;
  UniformRule rule_;
};

}  // namespace kvd::planner
