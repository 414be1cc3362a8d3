#include "planner/solver/bound_lp.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "planner/solver/placement_solver.hpp"
#include "tests/unit/planner/seed.hpp"
#include "tests/unit/planner/solver/problems.hpp"

namespace kvd::planner::testing {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
const std::vector<double> kNothingFixed(3, 0.0);

BoundLp lp_with(double weight) {
  const std::vector<MemoryRow> rows = {{{1, weight, 0.2}}};
  return {10, 5, 1, rows, std::nullopt};
}

void add_cut(BoundLp& lp) { lp.add({1, {0.1, 0.5, 0.9}}); }

// An infinite coefficient runs into an assertion inside GLPK, which without the hook is abort().
// The planner's checks let none through; this is the way to see what happens if one got there.
bool provoke_fault() {
  auto lp = lp_with(kInfinite);
  add_cut(lp);
  return !lp.solve(kNothingFixed);
}

TEST(BoundLp, AFaultInsideGlpkIsAFailedSolutionAndNoAbort) { EXPECT_TRUE(provoke_fault()); }

TEST(BoundLp, AFaultEndsTheProblemsOfItsThreadAndNewOnesWork) {
  auto before = lp_with(0.5);
  add_cut(before);
  ASSERT_TRUE(before.solve(kNothingFixed));
  const auto load = before.load();
  ASSERT_TRUE(provoke_fault());
  EXPECT_FALSE(before.solve(kNothingFixed)) << "its memory is gone with the environment";
  EXPECT_EQ(before.load(), load) << "the last answer stands";
  add_cut(before);
  auto after = lp_with(0.5);
  add_cut(after);
  EXPECT_TRUE(after.solve(kNothingFixed));
  EXPECT_EQ(after.load(), load);
}

TEST(BoundLp, AFaultIsNoneOfOtherThreadsBusiness) {
  auto mine = lp_with(0.5);
  add_cut(mine);
  bool faulted = false;
  std::thread([&] { faulted = provoke_fault(); }).join();
  EXPECT_TRUE(faulted);
  EXPECT_TRUE(mine.solve(kNothingFixed));
}

TEST(BoundLp, PlansAreTheSameAfterAFault) {
  std::mt19937_64 random(test_seed());
  const ManualClock clock;
  SolveLimits limits;
  limits.nodes = 10;
  for (int round = 0; round < 20; ++round) {
    const auto problem = random_problem(random, 6);
    const auto before = *solve_placement(problem, limits, clock);
    ASSERT_TRUE(provoke_fault());
    const auto after = *solve_placement(problem, limits, clock);
    ASSERT_EQ(after.choice, before.choice);
    ASSERT_EQ(after.lower_bound, before.lower_bound);
  }
}

}  // namespace
}  // namespace kvd::planner::testing
