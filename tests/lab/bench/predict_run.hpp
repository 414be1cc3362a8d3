#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvd/core/door/tuning.hpp"
#include "planner/model/latency.hpp"
#include "tests/lab/bench/serve_run.hpp"

namespace kvd::bench {

/// A stretch of iterations in which the whole batch decoded under one plan.
struct Stretch {
  std::vector<planner::StreamedRequest> requests;  ///< their full blocks, in its middle
  std::vector<std::uint32_t> distances;            ///< by request; 0: none, or no such k
  double iteration_s = 0;  ///< the first quartile: whatever else the machine does only adds
  std::size_t iterations = 0;
  double planned_s = 0;  ///< what the daemon's plan foresaw
};

/// Prompts of these lengths at once on a node of their own, each answered with `new_tokens`;
/// returns the stretches long enough to be measured. Without streaming layers, the one in which
/// nothing streams.
[[nodiscard]] std::vector<Stretch> run_batch(const ServeStage& stage, const core::Tuning& tuning,
                                             const std::vector<std::uint32_t>& prompts,
                                             std::uint32_t new_tokens);

}  // namespace kvd::bench
