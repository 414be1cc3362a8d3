#pragma once

#include <random>

#include "planner/model/candidates.hpp"

namespace kvd::planner::testing {

inline StepModel uniform_model(std::size_t layers, double compute_s, double blocks_per_s) {
  return {std::vector<Seconds>(layers, Seconds(compute_s)), Seconds(1 / blocks_per_s), Seconds(0)};
}

/// Layers of differing compute time, a link that matters, and now and then a fixed cost.
inline StepModel random_model(std::mt19937_64& random) {
  std::uniform_real_distribution<double> compute(0.2, 2.0);
  std::uniform_real_distribution<double> rate(1.0, 30.0);
  StepModel model = uniform_model(1 + random() % 40, 1, rate(random));
  for (auto& time : model.compute) time = Seconds(compute(random));
  if (random() % 2) model.per_transfer = Seconds(compute(random) * 0.3);
  return model;
}

/// Any set of layers, not only candidates.
inline std::vector<StreamedRequest> random_requests(std::mt19937_64& random, std::size_t layers) {
  std::vector<StreamedRequest> requests(1 + random() % 6);
  for (auto& request : requests) {
    request.blocks = Blocks(static_cast<std::int64_t>(random() % 20));
    const auto density = random() % 5;
    for (std::size_t l = 1; l <= layers; ++l) {
      if (random() % 5 < density) request.offloaded.push_back(static_cast<std::int32_t>(l));
    }
  }
  return requests;
}

}  // namespace kvd::planner::testing
