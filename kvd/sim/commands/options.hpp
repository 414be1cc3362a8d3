#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/run/inputs.hpp"
#include "kvd/sim/run/metrics.hpp"
#include "kvd/sim/run/setting.hpp"

namespace kvd::sim {

/// Options of a workload whose requests announce their answers in this way.
[[nodiscard]] inline WorkloadOptions announcing(std::string max_tokens) {
  WorkloadOptions options;
  options.max_tokens = std::move(max_tokens);
  return options;
}

/// How the engines of one run share the machine, and which requests they seat.
struct EngineOptions {
  bool one_device = false;  ///< they take turns on it
  bool place = false;       ///< they place their blocks themselves
  bool partition = false;   ///< they get equal parts of HBM instead of sharing it
  /// Sizes, one for each engine, each in a domain of its own; empty: all share one domain.
  std::vector<std::string> guarantees;
  bool shortest_first = false;
  std::vector<std::string> goals{};  ///< "TTFT:TBT" in seconds, one for each engine; empty: none
};

/// What to simulate, as the command line says it. Every command that runs something shares these.
struct ScenarioOptions {
  std::vector<std::string> profiles;                   ///< one for each engine
  std::vector<std::string> traces = {"gen:sharegpt"};  ///< one for each engine
  /// Requests a second: none, one rate for all, or one for each engine.
  std::vector<double> rates;
  std::vector<std::string> policies;
  WorkloadOptions workload = announcing("mix");  ///< its rate comes from `rates`
  std::size_t seeds = 1;                         ///< the seeds are workload.seed, the next one, …
  std::optional<double> ttft_s, tbt_s, tpot_s;
  std::optional<std::int64_t> prefill_tokens;
  std::string hbm, dram, b_xfer;  ///< sizes; empty: the first two from the profile, b_xfer auto
  std::optional<double> alpha, beta_b, beta_f;
  std::optional<double> length_error;  ///< answers are predicted, wrong by this much
  double link = 1;                     ///< factor on the link's speed
  EngineOptions engines;
  std::vector<std::string> classes;  ///< goals of a share: "TTFT:TBT:SHARE", in seconds
  std::string overload;              ///< "ttft" or "goodput"; empty: the policy's own
  std::optional<double> until_s;
  bool check = false;
  bool json = false;
  bool progress = false;
};

/// Parses bytes from "64GiB", "512 MiB", "1.5TiB" or "4096". Errors: InvalidArgument.
[[nodiscard]] Result<Bytes> parse_size(const std::string& text);

/// Called with the share of the run that is done, from 0 to 1.
using RunProgress = std::function<void(double share)>;

/// Runs one policy on the workload of one seed. Errors: those of the workload, the profiles, the
/// policy's name and run().
[[nodiscard]] Result<RunResult> simulate(const ScenarioOptions& options, const std::string& policy,
                                         std::uint64_t seed, const RunProgress& progress);

/// Runs one policy over all seeds. `progress` covers them all.
[[nodiscard]] Result<Summary> summarize_policy(const ScenarioOptions& options,
                                               const std::string& policy,
                                               const RunProgress& progress);

}  // namespace kvd::sim
