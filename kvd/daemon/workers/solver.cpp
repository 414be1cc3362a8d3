#include "kvd/daemon/workers/solver.hpp"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "ipc/vocabulary/clock.hpp"
#include "planner/policy/catalogue.hpp"
#include "planner/solver/placement_solver.hpp"

namespace kvd::daemon {

namespace {

Result<planner::PlacementDecision> decide(const core::SolvePlacement& problem) {
  KVD_ASSIGN_OR_RETURN(const auto policy, planner::stock_policies().placement(problem.policy));
  return policy->decide(problem.snapshot, problem.config, planner::ThreadCpuClock());
}

}  // namespace

Solver::Solver(Answer answer) : answer_(std::move(answer)), thread_([this] { run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "kvd-solver");
}

Solver::~Solver() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Solver::solve(core::SolvePlacement problem) {
  {
    const std::lock_guard lock(mutex_);
    const auto older = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& waiting) {
      return waiting.engine == problem.engine && waiting.query == problem.query;
    });
    if (older == waiting_.end()) {
      waiting_.push_back(std::move(problem));
    } else {
      *older = std::move(problem);
      ++counters_.replaced;
    }
  }
  wake_.notify_all();
}

void Solver::run() {
  const SteadyClock clock;
  for (;;) {
    core::SolvePlacement problem;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      problem = std::move(waiting_.front());
      waiting_.pop_front();
    }
    const TimePoint start = clock.now();
    Result<planner::PlacementDecision> decision = decide(problem);
    count(decision, to_seconds(clock.now() - start));
    answer_({problem.engine, problem.number, problem.query, std::move(decision)});
  }
}

void Solver::count(const Result<planner::PlacementDecision>& decision, double seconds) {
  const std::lock_guard lock(mutex_);
  const auto* bounds = Counters::kSecondsBounds;
  const auto* bound = std::lower_bound(bounds, std::end(Counters::kSecondsBounds), seconds);
  ++counters_.seconds[static_cast<std::size_t>(bound - bounds)];
  counters_.seconds_sum += seconds;
  if (!decision.ok()) {
    ++counters_.failed;
  } else if (!decision->feasible) {
    ++counters_.infeasible;
  } else {
    ++counters_.feasible;
    const bool bounded = decision->lower_bound > planner::Seconds(0);
    if (bounded) counters_.gap = decision->latency / decision->lower_bound - 1;
  }
}

Solver::Counters Solver::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace kvd::daemon
