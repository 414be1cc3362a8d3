#pragma once

#include <optional>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "planner/model/candidates.hpp"

namespace kvd::planner {

/// Which candidate each request should get so that T_batch is smallest and everything fits. SLOs,
/// deposits and the window stay outside: all requests share T, and those tests are monotone in it.
struct PlacementProblem {
  StepModel model;
  std::vector<Candidate> candidates;
  BufferRule buffer = BufferRule::kStrict;
  bool open_blocks = false;
  Blocks capacity;
  /// Blocks per layer, one entry for each request.
  std::vector<Blocks> blocks;
  /// Index of each request's present candidate, where it has one; empty when none has.
  std::vector<std::optional<std::size_t>> current;
  /// A choice for every request to start the search from; empty: none.
  std::vector<std::size_t> start;
};

/// When to stop. With a limit of nodes alone the result is a pure function of the problem.
struct SolveLimits {
  double tolerance = 0.005;
  std::optional<std::int64_t> nodes;
  /// By the clock that the solver was given.
  std::optional<Nanoseconds> time;
  /// The search also goes on until it has decided whether T can be brought down to this.
  std::optional<Seconds> goal;
};

/// Ties in latency: fewest blocks fetched, then least strict staging, then fewest requests whose
/// candidate changes.
struct TieBreak {
  std::int64_t fetched = 0;
  std::int64_t staging = 0;
  std::int64_t changes = 0;
  friend constexpr auto operator<=>(const TieBreak&, const TieBreak&) = default;
};

struct PlacementSolution {
  /// Candidate index per request; empty when there is no plan.
  std::vector<std::size_t> choice;
  Seconds latency{0};
  /// Never above the optimum.
  Seconds lower_bound{0};
  TieBreak ties;
  std::int64_t nodes = 0;
  /// Without a plan: proved that none exists. With one: proved that latency is within the
  /// tolerance.
  bool proved = false;
};

/// Latencies that are this close are equal.
inline constexpr double kTieSeconds = 1e-9;

/// Errors: InvalidArgument for an invalid model, no requests, no candidates or negative blocks.
[[nodiscard]] Status check(const PlacementProblem& problem);

}  // namespace kvd::planner
