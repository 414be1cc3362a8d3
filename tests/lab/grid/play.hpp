#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kvd/sim/run/metrics.hpp"
#include "kvd/sim/run/setting.hpp"
#include "tests/lab/grid/axes.hpp"

namespace kvd::sim::grid {

/// The setting of one policy and seed. No request alone takes more than half of HBM: longer ones
/// are shortened, prompt and answer in proportion, and an announced answer ends there, too. Errors:
/// those of the profiles, the workload and the policy's name.
[[nodiscard]] Result<Setting> setting_of(const Cell& cell, double rate, const std::string& policy,
                                         std::uint64_t seed);

/// The rate of the cell's lengths on its machine that counts as 1: the highest at which fcfs starts
/// 99 % of the answers in time, within a tenth, at cv 1, with exact announcements, one class, and
/// ample DRAM. It uses seeds 1 to 3, whatever seeds the cells are played with. Errors: as
/// find_knee().
[[nodiscard]] Result<double> knee_of(const Cell& cell);

/// The requests with equal goals.
struct PlayedClass {
  std::string name;  ///< "ttft 5 s, tbt 0.1 s"
  Metrics mean;      ///< over the seeds that have such a request
};

/// The tightest class of a cell without the others: the same arrivals, with the other classes left
/// out.
struct PlayedAlone {
  Metrics mean;
  std::string fault;
  double load = 0;  ///< its rate, as a multiple of the knee that it has alone
};

/// How a policy fared in a cell.
struct Played {
  Metrics mean;       ///< over the seeds
  std::string fault;  ///< why a run failed: such a policy serves no request; empty: none failed
  std::vector<PlayedClass> classes{};  ///< the tightest first
  std::optional<PlayedAlone> alone{};  ///< only where it was asked for
};
using PlayedCell = std::map<std::string, Played, std::less<>>;  ///< by policy

struct Seeds {
  std::uint64_t first = 1;
  std::uint64_t count = 5;
};

/// Which requests come.
enum class Whose : std::uint8_t { kAll, kTightest };

/// Plays one policy on the cell with every seed; seeds without a request are left out. `stop` is
/// asked before each run; true ends with Unavailable. Errors: as setting_of().
[[nodiscard]] Result<Played> play_policy(const Cell& cell, double knee, const std::string& policy,
                                         Seeds seeds, const std::function<bool()>& stop,
                                         Whose whose = Whose::kAll);

}  // namespace kvd::sim::grid
