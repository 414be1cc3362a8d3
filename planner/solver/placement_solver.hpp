#pragma once

#include "planner/solver/placement_problem.hpp"

namespace kvd::planner {

/// CPU time of the calling thread: such a budget buys the same plan on a busy machine as on an idle
/// one.
class ThreadCpuClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override;
};

/// The least T_batch that fits, with a proved lower bound, in a bounded time.
/// Source: kvd; MODEL.md "Placement search": an LP over pattern loads with path cuts bounds a
/// best-first
///         branch and bound over requests, largest first; rounding and local search make the plans.
/// Cost:   about a millisecond at 4 requests; SolveLimits otherwise.
/// Owner:  one thread (GLPK).
/// Errors: InvalidArgument as check(PlacementProblem). No plan is a result, not an error.
[[nodiscard]] Result<PlacementSolution> solve_placement(const PlacementProblem& problem,
                                                        const SolveLimits& limits,
                                                        const Clock& clock);

}  // namespace kvd::planner
