#include "kvd/daemon/workers/solver.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <numeric>

namespace kvd::daemon {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr std::chrono::seconds kPatience{30};

core::SolvePlacement problem(std::uint32_t engine, std::uint64_t number) {
  core::SolvePlacement out{EngineId(engine), number, false, "orbitflow", {}, {}};
  out.snapshot.model = {std::vector<planner::Seconds>(9, planner::Seconds(1)),
                        planner::Seconds(1.0 / 3), planner::Seconds(0)};
  out.snapshot.capacity = Blocks(70);
  out.snapshot.requests.resize(2);
  out.snapshot.requests[0].blocks = Blocks(3);
  out.snapshot.requests[1].blocks = Blocks(6);
  return out;
}

/// Collects answers; the first one is held until the test lets it go.
class Answers {
 public:
  void take(core::PlanReady plan) {
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      first = plans_.empty();
      plans_.push_back(std::move(plan));
      changed_.notify_all();
    }
    if (first) let_go_.get_future().wait_for(kPatience);
  }
  void let_go() { let_go_.set_value(); }
  [[nodiscard]] bool wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return plans_.size() >= count; });
  }
  [[nodiscard]] std::vector<core::PlanReady> all() {
    const std::lock_guard lock(mutex_);
    return plans_;
  }
  [[nodiscard]] std::vector<std::pair<std::uint32_t, std::uint64_t>> numbers() {
    std::vector<std::pair<std::uint32_t, std::uint64_t>> out;
    for (const auto& plan : all()) out.emplace_back(plan.engine.value, plan.number);
    return out;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<core::PlanReady> plans_;
  std::promise<void> let_go_;
};

TEST(Solver, AnswersAProblemWithItsPlan) {
  Answers answers;
  answers.let_go();
  Solver sut([&](core::PlanReady plan) { answers.take(std::move(plan)); });
  sut.solve(problem(3, 8));
  ASSERT_TRUE(answers.wait_for(1));
  const auto plan = answers.all()[0];
  EXPECT_EQ(plan.engine, EngineId(3));
  EXPECT_EQ(plan.number, 8u);
  ASSERT_TRUE(plan.decision.ok()) << plan.decision.error().message;
  EXPECT_TRUE(plan.decision->feasible);
  EXPECT_EQ(plan.decision->placement.size(), 2u);
  const Solver::Counters counters = sut.counters();
  EXPECT_EQ(counters.feasible, 1u);
  EXPECT_EQ(std::accumulate(counters.seconds.begin(), counters.seconds.end(), std::uint64_t{0}),
            1u);
  EXPECT_GT(counters.seconds_sum, 0);
}

TEST(Solver, SaysWhyAProblemCannotBeAnswered) {
  Answers answers;
  answers.let_go();
  Solver sut([&](core::PlanReady plan) { answers.take(std::move(plan)); });
  auto wrong = problem(1, 1);
  wrong.policy = "astrology";
  sut.solve(wrong);
  ASSERT_TRUE(answers.wait_for(1));
  EXPECT_EQ(answers.all()[0].decision.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(sut.counters().failed, 1u);
}

TEST(Solver, ANewerProblemTakesThePlaceOfTheEnginesWaitingOne) {
  Answers answers;
  Solver sut([&](core::PlanReady plan) { answers.take(std::move(plan)); });
  sut.solve(problem(1, 1));
  ASSERT_TRUE(answers.wait_for(1));  // its thread is held now, so that the others wait
  sut.solve(problem(1, 2));
  sut.solve(problem(2, 1));
  sut.solve(problem(1, 3));
  answers.let_go();
  ASSERT_TRUE(answers.wait_for(3));
  EXPECT_THAT(answers.numbers(), ElementsAre(Pair(1, 1), Pair(1, 3), Pair(2, 1)));
  EXPECT_EQ(sut.counters().replaced, 1u);
}

// The solver may solve all of them first if this thread gets no core between its release and the
// end. Then the test is tried again.
TEST(Solver, EndsWithProblemsWaiting) {
  std::size_t solved = 49;
  for (int round = 0; round < 20 && solved == 49; ++round) {
    Answers answers;
    {
      Solver sut([&](core::PlanReady plan) { answers.take(std::move(plan)); });
      sut.solve(problem(1, 1));
      ASSERT_TRUE(answers.wait_for(1));
      for (std::uint32_t engine = 2; engine < 50; ++engine) sut.solve(problem(engine, 1));
      answers.let_go();
    }
    solved = answers.all().size();
  }
  EXPECT_LT(solved, 49u);
}

}  // namespace
}  // namespace kvd::daemon
