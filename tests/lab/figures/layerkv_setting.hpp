#pragma once

#include "tests/lab/figures/grid.hpp"

/// LayerKV's setting (its section 5): L20, whole-prompt prefill, TTFT within 3 s, TPOT within 200
/// ms.
namespace kvd::sim::figures {

inline constexpr const char* kLlama = "l20-llama2-7b";

/// ShareGPT lengths for 120 s.
[[nodiscard]] Trial layerkv_trial(const std::string& profile, const std::string& policy,
                                  double rate);
/// 100 requests, one a second.
[[nodiscard]] Trial layerkv_fixed_trial(const std::string& profile, const std::string& policy,
                                        const std::string& workload);

}  // namespace kvd::sim::figures
