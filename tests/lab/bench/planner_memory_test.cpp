// Planning for days must not grow the process: GLPK's problems and environments have to be freed.
#include <gtest/gtest.h>

#include <cstdio>
#include <thread>

#include "ipc/vocabulary/units.hpp"
#include "planner/solver/placement_solver.hpp"
#include "tests/lab/bench/planner_instances.hpp"

namespace kvd::bench {
namespace {

Bytes resident() {
  long pages = 0, held = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  EXPECT_NE(file, nullptr);
  EXPECT_EQ(std::fscanf(file, "%ld %ld", &pages, &held), 2);
  std::fclose(file);
  return Bytes(held * 4096);
}

void plan(std::mt19937_64& random, int requests) {
  planner::SolveLimits limits;
  limits.nodes = 2;
  const auto problem = draw_instance(random, 32, requests, planner::BufferRule::kStrict);
  ASSERT_TRUE(planner::solve_placement(problem, limits, planner::ThreadCpuClock()).ok());
}

TEST(PlannerMemory, TenThousandPlansGrowItByLessThanTwoMebibytes) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) plan(random, 4);
  const Bytes before = resident();
  for (int i = 0; i < 10'000; ++i) plan(random, 4);
  EXPECT_LT(resident() - before, kMiB * 2);
}

// Without glp_free_env at its end each thread would leave about 5 KiB behind.
TEST(PlannerMemory, TwoThousandThreadsGrowItByLessThanTwoMebibytes) {
  std::mt19937_64 random(1);
  const auto short_thread = [&] { std::thread([&] { plan(random, 2); }).join(); };
  for (int i = 0; i < 200; ++i) short_thread();
  const Bytes before = resident();
  for (int i = 0; i < 2000; ++i) short_thread();
  EXPECT_LT(resident() - before, kMiB * 2);
}

}  // namespace
}  // namespace kvd::bench
