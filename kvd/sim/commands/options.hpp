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

/// Options of a workload whose requests announce their answers so.
[[nodiscard]] inline WorkloadOptions announcing(std::string max_tokens) {
  WorkloadOptions options;
  options.max_tokens = std::move(max_tokens);
  return options;
}

/// How engines of one run live together, and whom they seat.
struct EngineOptions {
  bool one_device = false;  ///< they take turns on it
  bool place = false;       ///< they place their blocks themselves
  bool partition = false;   ///< they get equal parts of HBM instead of sharing it
  /// Sizes, one for each engine, in domains of their own; empty: one domain.
  std::vector<std::string> guarantees;
  bool shortest_first = false;
  std::vector<std::string> goals{};  ///< "TTFT:TBT" in seconds, one for each engine; empty: none
};

/// What to simulate, as the command line says it; shared by every command that runs something.
struct ScenarioOptions {
  std::vector<std::string> profiles;                   ///< one for each engine
  std::vector<std::string> traces = {"gen:sharegpt"};  ///< one for each engine
  std::vector<double> rates;  ///< requests a second: none, one for all, or one for each engine
  std::vector<std::string> policies;
  WorkloadOptions workload = announcing("mix");  ///< its rate is that of `rates`
  std::size_t seeds = 1;                         ///< workload.seed, the next one, …
  std::optional<double> ttft_s, tbt_s, tpot_s;
  std::optional<std::int64_t> prefill_tokens;
  std::string hbm, dram, b_xfer;  ///< sizes; empty: the profile's, the profile's, auto
  std::optional<double> alpha, beta_b, beta_f;
  std::optional<double> length_error;  ///< answers are predicted, wrong by this much
  double link = 1;                     ///< factor on the link's speed
  EngineOptions engines;
  std::vector<std::string> classes;  ///< goals of a share: "TTFT:TBT:SHARE", in seconds
  std::string overload;              ///< "ttft", "goodput"; empty: the policy's
  std::optional<double> until_s;
  bool check = false;
  bool json = false;
  bool progress = false;
};

/// "64GiB", "512 MiB", "1.5TiB", "4096": bytes. Errors: InvalidArgument.
[[nodiscard]] Result<Bytes> parse_size(const std::string& text);

/// Called with how far the run is, from 0 to 1.
using RunProgress = std::function<void(double share)>;

/// One policy on the workload of one seed.
/// Errors: of the workload, the profiles, the policy's name and run().
[[nodiscard]] Result<RunResult> simulate(const ScenarioOptions& options, const std::string& policy,
                                         std::uint64_t seed, const RunProgress& progress);

/// One policy over all seeds. `progress` covers them all.
[[nodiscard]] Result<Summary> summarize_policy(const ScenarioOptions& options,
                                               const std::string& policy,
                                               const RunProgress& progress);

}  // namespace kvd::sim
