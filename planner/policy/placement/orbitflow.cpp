#include "planner/policy/placement/orbitflow.hpp"

#include <algorithm>

#include "planner/solver/placement_solver.hpp"

namespace kvd::planner {
namespace {

std::optional<std::size_t> index_of(const std::vector<Candidate>& candidates,
                                    const std::vector<std::int32_t>& offloaded) {
  const auto found = std::find_if(candidates.begin(), candidates.end(),
                                  [&](const Candidate& c) { return c.offloaded == offloaded; });
  if (found == candidates.end()) return std::nullopt;
  return static_cast<std::size_t>(found - candidates.begin());
}

PlacementProblem problem_of(const PlacementSnapshot& snapshot, const PlacementConfig& config,
                            CandidateSet set) {
  PlacementProblem problem;
  problem.model = snapshot.model;
  problem.candidates =
      candidates(static_cast<std::int32_t>(snapshot.model.layers()), set, snapshot.buffer);
  problem.buffer = snapshot.buffer;
  problem.open_blocks = snapshot.open_blocks;
  problem.capacity = snapshot.capacity;
  for (const auto& request : snapshot.requests) {
    problem.blocks.push_back(blocks_after(request, config.window_min, snapshot.block_tokens));
    problem.current.push_back(request.current ? index_of(problem.candidates, *request.current)
                                              : std::nullopt);
  }
  return problem;
}

// About how long it takes to judge the plan found. An evaluation takes a nanosecond a pair of
// layers, and a batch that grows is evaluated a dozen times to find where the plan expires.
Nanoseconds judging_time(const PlacementSnapshot& snapshot) {
  const bool grows =
      std::any_of(snapshot.requests.begin(), snapshot.requests.end(),
                  [](const PlacementRequest& request) { return request.tokens.has_value(); });
  const auto layers = static_cast<std::int64_t>(snapshot.model.layers());
  return Nanoseconds(layers * layers * (grows ? 14 : 2));
}

SolveLimits limits_of(const PlacementSnapshot& snapshot, const PlacementConfig& config) {
  SolveLimits limits;
  limits.tolerance = config.tolerance;
  limits.nodes = config.budget_nodes;
  if (config.budget_time) {
    const Nanoseconds kept = std::min(judging_time(snapshot), *config.budget_time / 2);
    limits.time = *config.budget_time - kept;
  }
  limits.goal = slowest_allowed(snapshot, config);
  return limits;
}

// Solves over D(L) first, with half the budget, and then over the even set, starting from that
// plan. The even set has many times the candidates, and a good plan to start from is worth more
// there than time.
Result<PlacementSolution> solve(const PlacementSnapshot& snapshot, const PlacementConfig& config,
                                const Clock& clock, PlacementProblem& problem) {
  const TimePoint begin = clock.now();
  SolveLimits limits = limits_of(snapshot, config);
  problem = problem_of(snapshot, config, CandidateSet::kDistances);
  if (snapshot.candidates == CandidateSet::kDistances) {
    if (limits.time) limits.time = std::max(Nanoseconds{0}, *limits.time - (clock.now() - begin));
    return solve_placement(problem, limits, clock);
  }
  SolveLimits half = limits;
  if (half.nodes) half.nodes = *half.nodes / 2;
  if (half.time) half.time = *half.time / 2;
  KVD_ASSIGN_OR_RETURN(const auto first, solve_placement(problem, half, clock));
  const auto distances = problem.candidates;
  problem = problem_of(snapshot, config, CandidateSet::kDistancesAndEven);
  for (const auto choice : first.choice) {
    problem.start.push_back(*index_of(problem.candidates, distances[choice].offloaded));
  }
  if (limits.nodes) limits.nodes = std::max<std::int64_t>(0, *limits.nodes - first.nodes);
  if (limits.time) limits.time = std::max(Nanoseconds{0}, *limits.time - (clock.now() - begin));
  KVD_ASSIGN_OR_RETURN(auto second, solve_placement(problem, limits, clock));
  second.nodes += first.nodes;
  return second;
}

}  // namespace

Result<PlacementDecision> OrbitFlowPolicy::decide(const PlacementSnapshot& snapshot,
                                                  const PlacementConfig& config,
                                                  const Clock& clock) const {
  KVD_TRY(check(snapshot, config));
  PlacementProblem problem;
  KVD_ASSIGN_OR_RETURN(const auto solution, solve(snapshot, config, clock, problem));
  PlacementDecision decision;
  decision.nodes = solution.nodes;
  decision.proved = solution.proved;
  decision.lower_bound = solution.lower_bound;
  if (solution.choice.empty()) {
    decision.victim = pause_victim(snapshot);
    return decision;
  }
  for (const auto choice : solution.choice) {
    decision.placement.push_back(problem.candidates[choice]);
  }
  judge(snapshot, config, decision);
  // The two sum the same step in different orders.
  decision.lower_bound = std::min(decision.lower_bound, decision.latency);
  // The SLO is out of reach only if the bound, too, is above what it allows.
  if (!decision.feasible) {
    const auto allowed = slowest_allowed(snapshot, config);
    decision.proved = allowed && solution.lower_bound > *allowed;
  }
  return decision;
}

}  // namespace kvd::planner
