#include "planner/solver/placement_solver.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/planner/model/event_simulation.hpp"
#include "tests/unit/planner/seed.hpp"
#include "tests/unit/planner/solver/exhaustive.hpp"
#include "tests/unit/planner/solver/problems.hpp"

namespace kvd::planner::testing {
namespace {

const ManualClock kNoTime;

PlacementSolution solve(const PlacementProblem& problem, double tolerance = 0) {
  SolveLimits limits;
  limits.tolerance = tolerance;
  auto solution = solve_placement(problem, limits, kNoTime);
  EXPECT_TRUE(solution.ok());
  return *solution;
}

std::vector<std::optional<std::int32_t>> distances(const PlacementProblem& problem,
                                                   const PlacementSolution& solution) {
  std::vector<std::optional<std::int32_t>> k;
  for (const auto choice : solution.choice) k.push_back(problem.candidates[choice].distance);
  return k;
}

using Distances = std::vector<std::optional<std::int32_t>>;

TEST(Fig3Optimum, ByEq1AtStep1IsPlacementB) {
  const auto problem = fig3(3, BufferRule::kEq1);
  const auto solution = solve(problem);
  EXPECT_EQ(distances(problem, solution), (Distances{0, 3}));
  EXPECT_NEAR(solution.latency.count(), 9, 1e-9);
  EXPECT_EQ(solution.ties.fetched, 18) << "three ties move 18; the least staging decides";
  EXPECT_EQ(solution.ties.staging, 6);
}

TEST(Fig3Optimum, ByEq1AtStep16IsPlacementC) {
  const auto problem = fig3(4, BufferRule::kEq1);
  const auto solution = solve(problem);
  EXPECT_EQ(distances(problem, solution), (Distances{4, 3}));
  EXPECT_NEAR(solution.latency.count(), 9 + 2.0 / 3, 1e-9);
}

TEST(Fig3Optimum, StrictAtStep1IsPlacementB) {
  const auto problem = fig3(3, BufferRule::kStrict);
  const auto solution = solve(problem);
  EXPECT_EQ(distances(problem, solution), (Distances{0, 3}));
  EXPECT_NEAR(solution.latency.count(), 9, 1e-9);
  EXPECT_EQ(solution.lower_bound, solution.latency);
}

TEST(Fig3Optimum, StrictAtStep16IsPlacementA) {
  const auto problem = fig3(4, BufferRule::kStrict);
  const auto solution = solve(problem);
  EXPECT_EQ(distances(problem, solution), (Distances{3, 3}));
  EXPECT_NEAR(solution.latency.count(), 13, 1e-9);
}

TEST(Fig3Optimum, TheEvenSetGainsAThirdOfTheStall) {
  auto problem = fig3(4, BufferRule::kStrict);
  problem.candidates = candidates(9, CandidateSet::kDistancesAndEven, BufferRule::kStrict);
  const auto solution = solve(problem);
  EXPECT_NEAR(solution.latency.count(), 9 + 8.0 / 3, 1e-9);
  EXPECT_EQ(problem.candidates[solution.choice[0]].offloaded.size(), 5u);
  EXPECT_EQ(problem.candidates[solution.choice[1]].offloaded.size(), 2u);
}

// A sanitizer looks for faults of memory, which the first rounds find; the release run proves the
// optimum.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kRounds = 200;
#else
constexpr int kRounds = 1000;
#endif

class AgainstExhaustive : public ::testing::TestWithParam<double> {};

TEST_P(AgainstExhaustive, OptimumBoundFeasibilityAndTies) {
  SCOPED_TRACE(::testing::Message() << "seed " << test_seed());
  std::mt19937_64 random(test_seed());
  const double tolerance = GetParam();
  for (int round = 0; round < kRounds; ++round) {
    const auto problem = random_problem(random, round % 20 == 0 ? 4 : 3);
    const auto oracle = exhaustive(problem);
    const auto solution = solve(problem, tolerance);
    ASSERT_EQ(solution.choice.empty(), !oracle) << "round " << round;
    ASSERT_TRUE(solution.proved) << "round " << round;
    if (!oracle) continue;
    ASSERT_LE(solution.lower_bound.count(), oracle->latency + 1e-9) << "round " << round;
    ASSERT_LE(solution.latency.count(), oracle->latency * (1 + tolerance) + 1e-9);
    const auto again = evaluate(problem, solution.choice);
    ASSERT_TRUE(again) << "the plan fits";
    ASSERT_NEAR(again->latency, solution.latency.count(), 1e-9);
    if (tolerance > 0) continue;
    ASSERT_EQ(solution.ties.fetched, oracle->ties.fetched) << "round " << round;
    ASSERT_EQ(solution.ties.staging, oracle->ties.staging) << "round " << round;
    ASSERT_EQ(solution.ties.changes, oracle->ties.changes) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Tolerances, AgainstExhaustive, ::testing::Values(0.0, 0.005),
                         [](const auto& of) { return of.param > 0 ? "Half_percent" : "Exact"; });

TEST(PlacementSolver, MoreMemoryIsNeverWorse) {
  SCOPED_TRACE(::testing::Message() << "seed " << test_seed());
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 300; ++round) {
    auto problem = random_problem(random, 3);
    const auto less = solve(problem);
    problem.capacity += Blocks(1 + static_cast<std::int64_t>(random() % 20));
    const auto more = solve(problem);
    if (less.choice.empty()) continue;
    ASSERT_FALSE(more.choice.empty());
    ASSERT_LE(more.latency.count(), less.latency.count() + 1e-9);
  }
}

TEST(PlacementSolver, AStrictPlanStaysWithinTheBudgetWhenPlayed) {
  SCOPED_TRACE(::testing::Message() << "seed " << test_seed());
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 300; ++round) {
    auto problem = random_problem(random, 6);
    problem.buffer = BufferRule::kStrict;
    SolveLimits limits;
    limits.nodes = 20;
    const auto solution = *solve_placement(problem, limits, kNoTime);
    if (solution.choice.empty()) continue;
    const auto requests = streamed(problem, solution.choice);
    EventSimulation simulation(problem.model, requests);
    simulation.run();
    const auto resident =
        placement_memory(problem.model.layers(), requests, problem.open_blocks).resident;
    ASSERT_LE(static_cast<double>(resident.value) + simulation.peak_staging,
              static_cast<double>(problem.capacity.value) + 1e-6);
  }
}

TEST(PlacementSolver, WithNodesAloneThePlanIsAPureFunction) {
  std::mt19937_64 random(test_seed());
  const ThreadCpuClock real;
  for (int round = 0; round < 50; ++round) {
    const auto problem = random_problem(random, 10);
    SolveLimits limits;
    limits.nodes = 15;
    const auto once = *solve_placement(problem, limits, kNoTime);
    const auto twice = *solve_placement(problem, limits, real);
    ASSERT_EQ(once.choice, twice.choice);
    ASSERT_EQ(once.lower_bound, twice.lower_bound);
    ASSERT_EQ(once.nodes, twice.nodes);
  }
}

TEST(PlacementSolver, BoundsHoldWhenTheBudgetEndsEarly) {
  SCOPED_TRACE(::testing::Message() << "seed " << test_seed());
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 200; ++round) {
    const auto problem = random_problem(random, 4);
    const auto oracle = exhaustive(problem);
    SolveLimits limits;
    limits.nodes = static_cast<std::int64_t>(random() % 3);
    const auto solution = *solve_placement(problem, limits, kNoTime);
    if (solution.choice.empty()) {
      ASSERT_FALSE(solution.proved && oracle);
      continue;
    }
    ASSERT_LE(solution.lower_bound.count(), oracle->latency + 1e-9);
    ASSERT_GE(solution.latency.count(), oracle->latency - 1e-9);
  }
}

TEST(PlacementSolver, AnEndedTimeBudgetStillGivesAPlan) {
  auto problem = fig3(4, BufferRule::kStrict);
  SolveLimits limits;
  limits.time = Nanoseconds(0);
  const auto solution = *solve_placement(problem, limits, kNoTime);
  EXPECT_FALSE(solution.choice.empty());
  EXPECT_LE(solution.lower_bound, solution.latency);
}

// Every look at it is a millisecond.
class ClockOfLooks final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return std::chrono::milliseconds(++looks_); }
  [[nodiscard]] int looks() const { return looks_; }

 private:
  mutable int looks_ = 0;
};

TEST(PlacementSolver, ASpentTimeBudgetEndsTheSearchAtAnyNumberOfLayers) {
  for (const std::size_t layers : {1u, 9u, 80u, 1024u}) {
    PlacementProblem problem;
    problem.model = uniform_model(layers, 1, 3);
    problem.candidates = candidates(static_cast<std::int32_t>(layers),
                                    CandidateSet::kDistancesAndEven, BufferRule::kEq1);
    problem.buffer = BufferRule::kEq1;
    for (std::int64_t r = 1; r <= 12; ++r) problem.blocks.emplace_back(97 * r % 41);
    problem.capacity = Blocks(300 + static_cast<std::int64_t>(layers) * 100);
    SolveLimits limits;
    limits.tolerance = 0;
    limits.time = std::chrono::milliseconds(10);
    const ClockOfLooks clock;
    EXPECT_FALSE(solve_placement(problem, limits, clock)->choice.empty());
    EXPECT_LE(clock.looks(), 12) << layers << " layers: the start, ten, and the one that ends it";
  }
}

TEST(PlacementSolver, TheGoalKeepsTheSearchGoingUntilItIsDecided) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 200; ++round) {
    const auto problem = random_problem(random, 3);
    const auto optimum = solve(problem);
    if (optimum.choice.empty()) continue;
    SolveLimits limits;
    limits.tolerance = 0.5;
    limits.goal = optimum.latency + Seconds(1e-9);
    const auto reached = *solve_placement(problem, limits, kNoTime);
    ASSERT_NEAR(reached.latency.count(), optimum.latency.count(), 2e-9);
  }
}

TEST(PlacementSolver, NothingToMoveIsPlannedAtOnce) {
  auto problem = fig3(0, BufferRule::kStrict);
  problem.blocks = {Blocks(0), Blocks(0)};
  problem.capacity = Blocks(0);
  const auto solution = solve(problem);
  EXPECT_EQ(distances(problem, solution), (Distances{0, 0}));
  EXPECT_NEAR(solution.latency.count(), 9, 1e-9);
}

TEST(PlacementSolver, TooLittleMemoryIsProvedInfeasible) {
  auto problem = fig3(4, BufferRule::kStrict);
  problem.capacity = Blocks(9);
  const auto solution = solve(problem);
  EXPECT_TRUE(solution.choice.empty());
  EXPECT_TRUE(solution.proved);
  problem.capacity = Blocks(10);
  EXPECT_FALSE(solve(problem).choice.empty()) << "everything offloaded takes one layer's blocks";
}

TEST(PlacementSolver, RefusesInvalidInput) {
  const auto refused = [](const PlacementProblem& problem) {
    const auto solution = solve_placement(problem, {}, kNoTime);
    return !solution.ok() && solution.error().code == ErrorCode::kInvalidArgument;
  };
  auto problem = fig3(3, BufferRule::kStrict);
  problem.model.compute[4] = Seconds(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(refused(problem));
  problem = fig3(3, BufferRule::kStrict);
  problem.blocks.clear();
  EXPECT_TRUE(refused(problem));
  problem = fig3(-1, BufferRule::kStrict);
  EXPECT_TRUE(refused(problem));
  problem = fig3(3, BufferRule::kStrict);
  problem.candidates.clear();
  EXPECT_TRUE(refused(problem));
}

}  // namespace
}  // namespace kvd::planner::testing
