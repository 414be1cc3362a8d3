#pragma once

#include <optional>

#include "planner/solver/placement_problem.hpp"

namespace kvd::planner::testing {

/// Finds the best plan by trying all of them; an oracle for few requests.
struct Exhaustive {
  std::vector<std::size_t> choice;
  double latency = 0;
  TieBreak ties;
};

inline std::vector<StreamedRequest> streamed(const PlacementProblem& problem,
                                             const std::vector<std::size_t>& choice) {
  std::vector<StreamedRequest> requests;
  for (std::size_t r = 0; r < choice.size(); ++r) {
    requests.push_back({problem.blocks[r], problem.candidates[choice[r]].offloaded});
  }
  return requests;
}

inline std::optional<Exhaustive> evaluate(const PlacementProblem& problem,
                                          const std::vector<std::size_t>& choice) {
  const auto requests = streamed(problem, choice);
  const auto memory = placement_memory(problem.model.layers(), requests, problem.open_blocks);
  if (memory.resident + memory.staging(problem.buffer) > problem.capacity) return std::nullopt;
  Exhaustive plan{choice, edf_latency(problem.model, requests).total.count(), {}};
  plan.ties = {memory.fetched.value, memory.staging_strict.value, 0};
  for (std::size_t r = 0; r < choice.size(); ++r) {
    const bool kept = !problem.current.empty() && problem.current[r] == choice[r];
    if (!kept) ++plan.ties.changes;
  }
  return plan;
}

inline std::optional<Exhaustive> exhaustive(const PlacementProblem& problem) {
  std::vector<Exhaustive> plans;
  double least = 1e300;
  std::vector<std::size_t> choice(problem.blocks.size(), 0);
  for (bool more = true; more;) {
    if (const auto plan = evaluate(problem, choice)) {
      if (plan->latency <= least + kTieSeconds) plans.push_back(*plan);
      least = std::min(least, plan->latency);
    }
    more = false;
    for (std::size_t r = 0; r < choice.size() && !more; ++r) {
      more = ++choice[r] < problem.candidates.size();
      if (!more) choice[r] = 0;
    }
  }
  std::optional<Exhaustive> best;
  for (const auto& plan : plans) {
    if (plan.latency <= least + kTieSeconds && (!best || plan.ties < best->ties)) best = plan;
  }
  return best;
}

}  // namespace kvd::planner::testing
