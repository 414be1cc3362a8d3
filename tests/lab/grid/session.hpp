#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/lab/grid/play.hpp"

namespace kvd::sim::grid {

/// What to play, and the folder that keeps the results.
struct Plan {
  std::filesystem::path folder;
  std::string digest;  ///< of the axes
  std::vector<Cell> cells;
  std::vector<std::string> policies;
  Seeds seeds;
  std::size_t jobs = 1;  ///< threads
  std::string alone{};   ///< the policy that plays the tightest class alone, too; empty: none
};

/// Called with the share of the remaining work that is done, 0 to 1; one call at a time, from any
/// thread.
using GridProgress = std::function<void(double share, const std::string& what)>;

/// Plays every policy on every cell, in the plan's order. Results that the folder has are not
/// played again: it holds "knees.jsonl" and a file for the seeds, with a line for each cell and
/// policy as soon as it is finished. Errors: as Ledger::open(), knee_of() and play_policy();
/// finished results are kept.
[[nodiscard]] Result<std::vector<PlayedCell>> play_grid(const Plan& plan,
                                                        const GridProgress& progress);

}  // namespace kvd::sim::grid
