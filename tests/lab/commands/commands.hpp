#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "kvd/sim/run/inputs.hpp"

/// The commands of kvd-lab. Each prints to `out` only if all of it worked, and returns its exit
/// status.
namespace kvd::sim {

/// What `reproduce FIGURE|all` was asked. An empty figure lists them.
struct ReproduceOptions {
  std::string figure;
  bool json = false;
  /// Runs for each point, each with its own arrivals and lengths; the mean is printed with its
  /// spread.
  int seeds = 5;
  std::uint64_t first_seed = 1;
  /// Whether progress goes to `err`.
  bool progress = true;
};
[[nodiscard]] int reproduce_command(const ReproduceOptions& options, std::ostream& out,
                                    std::ostream& err);

/// `report --out DIR`: every figure, or the named ones, as one page and SVG files.
struct ReportOptions {
  std::filesystem::path folder;
  std::vector<std::string> figures;
  int seeds = 5;
  std::uint64_t first_seed = 1;
  bool progress = true;
};
/// All or nothing: the folder appears, or is replaced, once everything in it is written.
[[nodiscard]] int report_command(const ReportOptions& options, std::ostream& out,
                                 std::ostream& err);

/// Eviction policies on the prefixes of a workload, and the most that is possible.
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
  std::filesystem::path axes;                 ///< JSON; empty: the axes that kvd-lab brings
  std::optional<std::size_t> cells;           ///< only the first ones
  std::vector<std::string> only;              ///< only the cells of these names; empty: all
  std::vector<std::string> against;  ///< the other policies; empty: those that METRICS.md names
  std::size_t jobs = 1;              ///< threads
  std::size_t seeds = 5;             ///< how many seeds, from 1 on
  bool kept_apart = false;           ///< seeds from 6 on instead
  double tolerance = 0.02;           ///< tolerance of joint attainment
  bool json = false;
  bool progress = false;
};
/// Ends with 1 where the policy is behind by more than the tolerance; or, where classes are judged,
/// where it misses what METRICS.md asks of a cell whose tightest class fits.
[[nodiscard]] int grid_command(const GridOptions& options, std::ostream& out, std::ostream& err);

}  // namespace kvd::sim
