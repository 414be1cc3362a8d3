#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::core {

/// Settings of the policy that decides who runs. Source: SuperInfer sec. 4 (VLT); its weights'
/// defaults. The policy is kvd's.
struct RotationTuning {
  std::string policy = "unified";
  double alpha = 3;     ///< weight of a rotary request's lag, >= 0
  double beta_b = 0;    ///< rotary lag starts at beta_b * TBT SLO; negative starts it early
  double beta_f = 0.5;  ///< waiting lag starts at beta_f * TTFT SLO
  /// Bytes rotated a step, at most; none ("auto"): min(link rate x mean iteration, HBM / 16).
  std::optional<Bytes> b_xfer;
  /// Full blocks are copied to DRAM in the background, so that who leaves has little left to move.
  /// Source: SuperInfer sec. 5 (eager rotation).
  bool eager = true;
  /// Whom `unified` serves where not everybody's goal can be met: "ttft" or "goodput".
  std::string overload = "goodput";
  /// Whether clients of engines that place their blocks show a token when it is made ("engine"), or
  /// one each TBT goal ("client").
  std::string pacing = "engine";
};

/// Which layers stay. Source: OrbitFlow (SLO violations a step, replanning window in tokens).
struct PlacementTuning {
  std::string policy = "none";
  double alpha = 1;
  std::int64_t window_min = 32;
  std::int64_t window_max = 1000;
  bool pause = true;    ///< a batch that cannot meet its SLOs goes on without one request
  bool deposit = true;  ///< tokens not yet due count when late ones are estimated
};

/// Settings of the policy that decides who may prefill. Source: LayerKV eq. 3 and 4.
struct AdmissionTuning {
  std::string policy = "none";
  double alpha = 1;
  double beta = 1;
};

/// Whether a prefix that was found in DRAM is loaded or computed again. What HBM has is used
/// anyway. Source: the KV-offloading article (planner/policy/load.hpp).
struct LoadTuning {
  std::string policy = "measured_crossover";
};

/// Latency goals of one class of requests.
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
/// By name.
using SloClasses = std::map<std::string, Slo>;
/// The class with this slo_class_number(); without one the class by that name; end: none of them.
[[nodiscard]] SloClasses::const_iterator class_of(const SloClasses& classes, std::uint32_t number,
                                                  const std::string& usual);
/// Whoever says a longer one has as good as none.
inline constexpr Nanoseconds kLongestGoal = std::chrono::hours(24 * 365);

/// Everything that can be changed while the daemon runs; a change takes effect at the next step.
/// Source: kvd/DESIGN.md "What operators see and change".
struct Tuning {
  RotationTuning rotation;
  PlacementTuning placement;
  AdmissionTuning admission;
  LoadTuning load;
  SloClasses slo = {{"default", Slo{}}};

  /// All faults at once, each naming the key's path; empty when valid. With an oracle, who says how
  /// long answers will be, policies that need one are valid, too.
  [[nodiscard]] std::vector<std::string> faults(bool oracle = false) const;
};

}  // namespace kvd::core
