#include <gtest/gtest.h>

#include <thread>

#include "planner/solver/placement_solver.hpp"
#include "tests/unit/planner/seed.hpp"
#include "tests/unit/planner/solver/problems.hpp"

namespace kvd::planner::testing {
namespace {

std::vector<std::vector<std::size_t>> plans(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const ManualClock clock;
  SolveLimits limits;
  limits.nodes = 5;
  constexpr std::size_t kRounds = 60;
  std::vector<std::vector<std::size_t>> choices;
  choices.reserve(kRounds);
  for (std::size_t round = 0; round < kRounds; ++round) {
    choices.push_back(solve_placement(random_problem(random, 6), limits, clock)->choice);
  }
  return choices;
}

TEST(SolverThreads, TwoThreadsAgreeWithOne) {
  const auto alone = plans(test_seed());
  std::vector<std::vector<std::size_t>> first, second;
  std::thread a([&] { first = plans(test_seed()); });
  std::thread b([&] { second = plans(test_seed()); });
  a.join();
  b.join();
  EXPECT_EQ(first, alone);
  EXPECT_EQ(second, alone);
}

}  // namespace
}  // namespace kvd::planner::testing
