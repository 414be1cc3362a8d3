#pragma once

#include <algorithm>
#include <cmath>
#include <random>

#include "planner/solver/placement_problem.hpp"

namespace kvd::bench {

/// A decode batch as drawn for the planner's figures: lengths log-normal (median 8K, sigma 1.2,
/// 1K..128K), blocks of 16 tokens and 64 KiB per layer, capacity 35..95 % of what the batch would
/// fill. With up to 32 layers it is LLaMA3-8B on a 12 or 24 GB/s link, with more Qwen2.5-32B on 200
/// GB/s. A layer's compute grows with the batch's tokens as in the published fits.
inline planner::PlacementProblem draw_instance(std::mt19937_64& random, std::int32_t layers,
                                               int requests, planner::BufferRule buffer) {
  using planner::Seconds;
  std::lognormal_distribution<double> length(std::log(8192.0), 1.2);
  std::uniform_real_distribution<double> share(0.35, 0.95);
  planner::PlacementProblem problem;
  double tokens = 0;
  std::int64_t blocks = 0;
  for (int r = 0; r < requests; ++r) {
    const double n = std::clamp(length(random), 1024.0, 131072.0);
    problem.blocks.emplace_back(static_cast<std::int64_t>(std::ceil(n / 16)));
    blocks += problem.blocks.back().value;
    tokens += n;
  }
  const bool large = layers > 32;
  const double link = large ? 200e9 : (random() % 2 ? 12e9 : 24e9);
  const double compute = large ? 0.33e-3 + 1.05e-9 * tokens : 0.74e-3 + 3.0e-8 * tokens;
  problem.model = {std::vector<Seconds>(static_cast<std::size_t>(layers), Seconds(compute)),
                   Seconds(65536 / link), Seconds(0)};
  problem.buffer = buffer;
  problem.candidates = candidates(layers, planner::CandidateSet::kDistances, buffer);
  problem.capacity =
      Blocks(static_cast<std::int64_t>(share(random) * static_cast<double>(blocks) * layers));
  return problem;
}

}  // namespace kvd::bench
