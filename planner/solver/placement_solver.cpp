#include "planner/solver/placement_solver.hpp"

#include <ctime>

#include "planner/solver/branch_and_bound.hpp"

namespace kvd::planner {

TimePoint ThreadCpuClock::now() const {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + Nanoseconds(time.tv_nsec);
}

Result<PlacementSolution> solve_placement(const PlacementProblem& problem,
                                          const SolveLimits& limits, const Clock& clock) {
  KVD_TRY(check(problem));
  BranchAndBound search(problem, limits, clock);
  return search.run();
}

}  // namespace kvd::planner
