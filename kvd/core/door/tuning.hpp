#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "planner/policy/catalogue.hpp"

namespace kvd::core {

/// Settings of the policy that decides who runs.
/// Source: SuperInfer sec. 4 (VLT); the defaults of its weights. The policy is kvd's.
struct RotationTuning {
  std::string policy = "unified";
  double alpha = 3;     ///< weight of a rotary request's lag, >= 0
  double beta_b = 0;    ///< rotary lag starts at beta_b * TBT SLO; a negative value starts it early
  double beta_f = 0.5;  ///< waiting lag starts at beta_f * TTFT SLO
  /// The most bytes that a step rotates; none ("auto"): min(link rate x mean iteration, HBM / 16).
  std::optional<Bytes> b_xfer;
  /// Copies full blocks to DRAM in the background, so that a request that leaves has little left to
  /// move.
  /// Source: SuperInfer sec. 5 (eager rotation).
  bool eager = true;
  /// Which requests `unified` serves where not every goal can be met: "ttft" or "goodput".
  std::string overload = "goodput";
  /// Whether clients of engines that place their own blocks show each token when it is made
  /// ("engine"), or one token per TBT goal ("client").
  std::string pacing = "engine";
};

/// Settings of the policy that decides which layers stay.
/// Source: OrbitFlow (SLO violations a step, replanning window in tokens).
struct PlacementTuning {
  std::string policy = "none";
  double alpha = 1;
  std::int64_t window_min = 32;
  std::int64_t window_max = 1000;
  bool pause = true;    ///< a batch that cannot meet its SLOs goes on without one request
  bool deposit = true;  ///< tokens that are not yet due count when late ones are estimated
};

/// Settings of the policy that decides who may prefill. Source: LayerKV eq. 3 and 4.
struct AdmissionTuning {
  std::string policy = "none";
  double alpha = 1;
  double beta = 1;
};

/// Decides whether a prefix that was found in DRAM is loaded or computed again. What HBM has is
/// used in any case.
/// Source: the KV-offloading article (planner/policy/load.hpp).
struct LoadTuning {
  std::string policy = "measured_crossover";
};

/// The latency goals of one class of requests.
struct Slo {
  Nanoseconds ttft{5'000'000'000};
  Nanoseconds tbt{100'000'000};
  Nanoseconds tpot{200'000'000};
  /// The longest wait for a token after the first; none ("auto"): ten times `tbt`, at least 1 s.
  std::optional<Nanoseconds> gap{};

  friend bool operator==(const Slo&, const Slo&) = default;

  [[nodiscard]] Nanoseconds longest_gap() const {
    return gap.value_or(std::max(Nanoseconds(1'000'000'000), 10 * tbt));
  }
};
/// Keyed by name.
using SloClasses = std::map<std::string, Slo>;
/// The class with this slo_class_number(); if there is none, the class by that name; end: neither
/// exists.
[[nodiscard]] SloClasses::const_iterator class_of(const SloClasses& classes, std::uint32_t number,
                                                  const std::string& usual);
/// A longer goal counts as none.
inline constexpr Nanoseconds kLongestGoal = std::chrono::hours(24 * 365);

/// Everything that can be changed while the daemon runs; a change takes effect at the next step.
/// Source: kvd/DESIGN.md "What operators see and change".
struct Tuning {
  RotationTuning rotation;
  PlacementTuning placement;
  AdmissionTuning admission;
  LoadTuning load;
  SloClasses slo = {{"default", Slo{}}};

  /// All faults at once, each naming the key's path; empty when valid. `policies`: those that can
  /// run.
  [[nodiscard]] std::vector<std::string> faults(
      const planner::Catalogue& policies = planner::stock_policies()) const;
};

}  // namespace kvd::core
