#pragma once

#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "kvd/sim/commands/options.hpp"

/// The commands that simulate what they are told. Each prints to `out` only if all of it worked,
/// and returns its exit status.
namespace kvd::sim {

/// One policy with every figure.
struct RunOptions {
  /// File to write, with a line for each request; empty: none.
  std::filesystem::path requests_csv;
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
  std::string figure = "joint_attainment";  ///< the figure that it shows
};
[[nodiscard]] int sweep_command(const ScenarioOptions& options, const SweepOptions& sweep,
                                std::ostream& out, std::ostream& err);
/// The parameters that can be swept.
[[nodiscard]] std::vector<std::string> sweep_parameters();

/// The request rate at which a policy's TTFT attainment falls under a threshold.
struct KneeOptions {
  double threshold = 0.99;
  double precision = 0.02;  ///< precision of the rate
  /// Runs for each rate, instead of the scenario's: a knee found with one seed is up to a tenth
  /// off.
  std::size_t seeds = 5;
};
[[nodiscard]] int knee_command(const ScenarioOptions& options, const KneeOptions& knee,
                               std::ostream& out, std::ostream& err);

}  // namespace kvd::sim
