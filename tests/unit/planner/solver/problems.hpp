#pragma once

#include "planner/solver/placement_problem.hpp"
#include "tests/unit/planner/model/batches.hpp"

namespace kvd::planner::testing {

/// OrbitFlow Fig. 3: nine layers, three blocks a layer-time, 70 blocks.
inline PlacementProblem fig3(std::int64_t blocks1, BufferRule buffer) {
  PlacementProblem problem;
  problem.model = uniform_model(9, 1, 3);
  problem.buffer = buffer;
  problem.candidates = candidates(9, CandidateSet::kDistances, buffer);
  problem.capacity = Blocks(70);
  problem.blocks = {Blocks(blocks1), Blocks(6)};
  return problem;
}

/// A batch whose memory is between far too small and ample.
inline PlacementProblem random_problem(std::mt19937_64& random, std::size_t most_requests) {
  PlacementProblem problem;
  problem.model = random_model(random);
  problem.buffer = random() % 2 ? BufferRule::kStrict : BufferRule::kEq1;
  problem.open_blocks = random() % 4 == 0;
  const auto layers = static_cast<std::int64_t>(problem.model.layers());
  problem.candidates =
      candidates(static_cast<std::int32_t>(layers), CandidateSet::kDistances, problem.buffer);
  std::int64_t sum = 0;
  for (auto n = 1 + random() % most_requests; n > 0; --n) {
    problem.blocks.emplace_back(static_cast<std::int64_t>(random() % 30));
    sum += problem.blocks.back().value;
    if (random() % 2) {
      problem.current.emplace_back(random() % problem.candidates.size());
    } else {
      problem.current.emplace_back(std::nullopt);
    }
  }
  if (random() % 2) problem.current.clear();
  const auto all = static_cast<std::uint64_t>(sum * layers + 1);
  problem.capacity = Blocks(static_cast<std::int64_t>(random() % all));
  return problem;
}

}  // namespace kvd::planner::testing
