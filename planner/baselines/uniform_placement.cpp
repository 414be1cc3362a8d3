#include "planner/baselines/uniform_placement.hpp"

#include <algorithm>
#include <optional>

namespace kvd::planner {
namespace {

// Keeps as many layers in HBM as there is room for blocks of one layer, and offloads the rest
// evenly.
std::int32_t distance_for_memory(const PlacementSnapshot& snapshot, Blocks per_layer) {
  const auto layers = static_cast<std::int64_t>(snapshot.model.layers());
  if (per_layer <= Blocks{0}) return 0;
  const auto resident = std::min(layers, snapshot.capacity / per_layer);
  const auto offloaded = layers - resident;
  return offloaded == 0 ? 0
                        : static_cast<std::int32_t>(std::max<std::int64_t>(2, layers / offloaded));
}

Blocks flexgen_plus_blocks(const PlacementSnapshot& snapshot, const PlacementConfig& config) {
  Blocks sum;
  for (const auto& request : snapshot.requests) {
    const Blocks mean(pieces(config.mean_tokens, snapshot.block_tokens));
    sum += std::max(request.blocks, mean) + Blocks(1);
  }
  return sum;
}

Blocks dynamic_blocks(const PlacementSnapshot& snapshot) {
  Blocks sum;
  for (const auto& request : snapshot.requests) sum += request.blocks + Blocks(2);
  return sum;
}

std::int32_t slo_aware_distance(const PlacementSnapshot& snapshot) {
  Seconds compute{0};
  for (const auto time : snapshot.model.compute) compute += time;
  const auto layers = static_cast<double>(snapshot.model.layers());
  double blocks = 0;
  for (const auto& request : snapshot.requests) blocks += static_cast<double>(request.blocks.value);
  const Seconds transfer = snapshot.model.per_block * (blocks * layers);
  const double hidden = transfer.count() > 0 ? std::min(layers, compute / transfer) : layers;
  const auto n = static_cast<std::int32_t>(hidden);
  const auto code = n < 1 ? 1 : std::max(1, static_cast<std::int32_t>(layers) / n);
  return code + 1;
}

PlacementDecision best_uniform(const PlacementSnapshot& snapshot, const PlacementConfig& config) {
  const auto layers = static_cast<std::int32_t>(snapshot.model.layers());
  std::optional<PlacementDecision> best;
  for (const auto& candidate : candidates(layers, CandidateSet::kDistances, snapshot.buffer)) {
    auto decision = place_alike(snapshot, config, *candidate.distance);
    const bool fits = decision.feasible || decision.reason == InfeasibleReason::kSlo;
    if (fits && (!best || decision.latency.count() < best->latency.count() - kTieSeconds)) {
      best = std::move(decision);
    }
  }
  return best ? *best : place_alike(snapshot, config, 1);
}

}  // namespace

std::int32_t UniformPlacementPolicy::distance(const PlacementSnapshot& snapshot,
                                              const PlacementConfig& config) const {
  switch (rule_) {
    case UniformRule::kDeepSpeed:
      return 1;
    case UniformRule::kFlexGen:
      return 2;
    case UniformRule::kFlexGenPlus:
      return distance_for_memory(snapshot, flexgen_plus_blocks(snapshot, config));
    case UniformRule::kDynamicHeuristic:
      return distance_for_memory(snapshot, dynamic_blocks(snapshot));
    case UniformRule::kSloAware:
      return slo_aware_distance(snapshot);
    case UniformRule::kBatchUniform:
      break;
  }
  return 0;
}

Result<PlacementDecision> UniformPlacementPolicy::decide(const PlacementSnapshot& snapshot,
                                                         const PlacementConfig& config,
                                                         const Clock& /*clock*/) const {
  KVD_TRY(check(snapshot, config));
  return rule_ == UniformRule::kBatchUniform
             ? best_uniform(snapshot, config)
             : place_alike(snapshot, config, distance(snapshot, config));
}

}  // namespace kvd::planner
