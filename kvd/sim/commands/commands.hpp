#pragma once

#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "kvd/sim/commands/options.hpp"

/// The commands that simulate what they are told; each prints to `out` only when all of it worked,
/// and returns its exit status.
namespace kvd::sim {

/// One policy, every figure.
struct RunOptions {
  std::filesystem::path requests_csv;  ///< to write, a line a request; empty: none
};
[[nodiscard]] int run_command(const ScenarioOptions& options, const RunOptions& what,
                              std::ostream& out, std::ostream& err);

/// Several policies on the same workloads, side by side.
[[nodiscard]] int compare_command(const ScenarioOptions& options, std::ostream& out,
                                  std::ostream& err);

/// `compare` at each value of one parameter.
struct SweepOptions {
  std::string over;
  std::vector<std::string> values;
  std::filesystem::path svg;                ///< picture to write; empty: none
  std::string figure = "joint_attainment";  ///< that it shows
};
[[nodiscard]] int sweep_command(const ScenarioOptions& options, const SweepOptions& sweep,
                                std::ostream& out, std::ostream& err);
/// What can be swept.
[[nodiscard]] std::vector<std::string> sweep_parameters();

/// The request rate at which a policy's TTFT attainment falls under a threshold.
struct KneeOptions {
  double threshold = 0.99;
  double precision = 0.02;  ///< of the rate
  /// Runs a rate: a knee by one seed lies up to a tenth off. Instead of the scenario's.
  std::size_t seeds = 5;
};
[[nodiscard]] int knee_command(const ScenarioOptions& options, const KneeOptions& knee,
                               std::ostream& out, std::ostream& err);

/// Policies of eviction on the prefixes of a workload, and the most that is possible.
struct CacheOptions {
  std::string trace = "gen:chat";
  std::string profile;
  WorkloadOptions workload;
  std::size_t seeds = 1;
  std::vector<std::string> policies;
  std::vector<double> capacities = {1, 2, 5, 10, 25};  ///< percent of the different blocks
  bool json = false;
  bool progress = false;
};
[[nodiscard]] int cache_command(const CacheOptions& options, std::ostream& out, std::ostream& err);

/// `grid`: a policy beside the best of the others, on cells drawn from committed axes.
struct GridOptions {
  std::string policy = "unified";
  std::filesystem::path folder = "kvd-grid";  ///< keeps every result; a later call goes on there
  std::string ground = "machines";            ///< "goals": the cells of classes of goals
  bool engines_place = false;                 ///< they place their blocks themselves
  std::filesystem::path axes;                 ///< JSON; empty: those that kvd-sim brings
  std::optional<std::size_t> cells;           ///< only the first ones
  std::vector<std::string> only;              ///< only those of these names; empty: all
  std::vector<std::string> against;           ///< the others; empty: those that METRICS.md names
  std::size_t jobs = 1;                       ///< threads
  std::size_t seeds = 5;                      ///< how many, from 1 on
  bool kept_apart = false;                    ///< from 6 on instead
  double tolerance = 0.02;                    ///< of joint attainment
  bool json = false;
  bool progress = false;
};
/// Ends with 1 where the policy is behind by more than the tolerance; where classes are judged,
/// where it misses what METRICS.md asks of a cell whose tightest class fits.
[[nodiscard]] int grid_command(const GridOptions& options, std::ostream& out, std::ostream& err);

}  // namespace kvd::sim
