#pragma once

#include "tests/lab/figures/grid.hpp"

/// SuperInfer's setting (its section 5): GH200, TTFT within 5 s, TBT within 100 ms, 120 s of
/// arrivals.
namespace kvd::sim::figures {

inline constexpr const char* kQwen = "gh200-qwen2.5-32b";
inline constexpr const char* kSuperInferUnit =
    "GH200, Qwen2.5-32B, ShareGPT lengths with the vLLM paper's means";
/// SI 5.2: blocks that a policy may rotate in an iteration. All policies get the same number.
inline constexpr std::int64_t kRotatedBlocks = 2400;
/// The rate of the figures over one parameter, as a multiple of FCFS's knee.
inline constexpr double kOverload = 1.3;

/// The configuration of the paper's RotaSched; fields that are set override it.
struct RotaParameters {
  double alpha = 3, beta_b = 0, beta_f = 0.5;
  std::int64_t blocks = kRotatedBlocks;
};

[[nodiscard]] Trial superinfer_trial(const std::string& profile, const std::string& policy,
                                     double rate, const RotaParameters& parameters = {});

/// The highest rate at which FCFS still starts 99 % of the answers in time.
/// Errors: as Lab::measure().
[[nodiscard]] Result<double> superinfer_knee(Lab& lab, const std::string& profile);

}  // namespace kvd::sim::figures
