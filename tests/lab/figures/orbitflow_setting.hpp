#pragma once

#include "tests/lab/figures/grid.hpp"

/// OrbitFlow's setting (its section 5): A5000, batches of 4, long answers, 0.97 requests a minute.
namespace kvd::sim::figures {

inline constexpr const char* kA5000 = "a5000-llama3-8b";
inline constexpr const char* kOrbitFlowUnit = "A5000, LLaMA3-8B, batches of 4, balanced mix";
inline constexpr double kPerMinute = 1.0 / 60;
inline constexpr double kMainRate = 0.97 * kPerMinute;

/// TBT and TPOT goal: a decode step over what HBM holds, times `scale` (OF 5.1).
[[nodiscard]] core::Slo orbitflow_slo(double scale);

/// Shortens requests that could grow beyond HBM until they fit, prompt and answer in proportion.
void shorten_to_hbm(Setting& setting);

/// `rate` in requests a second.
[[nodiscard]] Trial orbitflow_trial(const std::string& policy, double scale,
                                    const std::string& mix = "orbitflow-balanced",
                                    double rate = kMainRate);

}  // namespace kvd::sim::figures
