#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "kvd/sim/grid/axes.hpp"
#include "kvd/sim/run/metrics.hpp"
#include "kvd/sim/run/setting.hpp"

namespace kvd::sim::grid {

/// The setting of one policy and seed. No request alone takes more than half of HBM: longer ones
/// are shortened, prompt and answer in proportion; an announced answer ends there, too.
/// Errors: of the profiles, the workload and the policy's name.
[[nodiscard]] Result<Setting> setting_of(const Cell& cell, double rate, const std::string& policy,
                                         std::uint64_t seed);

/// The rate of the cell's lengths on its machine that counts as 1: the highest at which fcfs starts
/// 99 % of the answers in time, within a tenth, at cv 1, with exact announcements, one class, and
/// ample DRAM; by seeds 1 to 3, whatever seeds the cells are played with. Errors: as find_knee().
[[nodiscard]] Result<double> knee_of(const Cell& cell);

/// What a policy made of a cell.
struct Played {
  Metrics mean;       ///< over the seeds
  std::string fault;  ///< why a run failed: such a policy serves nobody; empty: none did
};
using PlayedCell = std::map<std::string, Played, std::less<>>;  ///< by policy

struct Seeds {
  std::uint64_t first = 1;
  std::uint64_t count = 5;
};

/// One policy on the cell with every seed. `stop` is asked before each run; true ends with
/// Unavailable. Errors: as setting_of().
[[nodiscard]] Result<Played> play_policy(const Cell& cell, double knee, const std::string& policy,
                                         Seeds seeds, const std::function<bool()>& stop);

}  // namespace kvd::sim::grid
