#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "kvd/core/door/effects.hpp"
#include "kvd/core/door/events.hpp"

namespace kvd::daemon {

/// Plans placement on a thread of its own, which GLPK's objects never leave.
/// One problem of a kind (plan or query) an engine waits at most: a newer one takes its place, and
/// the older is never answered.
/// Source: kvd/DESIGN.md "Threads".
/// Owner:  thread-safe. Destruction drops what waits and ends after the problem in hand, whose
///         budget bounds it.
class Solver {
 public:
  /// Called on the solver's thread; must not block.
  using Answer = std::function<void(core::PlanReady)>;

  /// What it has done, for metrics.
  struct Counters {
    static constexpr double kSecondsBounds[] = {0.0001, 0.0003, 0.001, 0.003, 0.01,
                                                0.03,   0.1,    0.3,   1};
    std::vector<std::uint64_t> seconds = std::vector<std::uint64_t>(std::size(kSecondsBounds) + 1);
    double seconds_sum = 0;
    std::uint64_t feasible = 0;
    std::uint64_t infeasible = 0;
    std::uint64_t failed = 0;
    std::uint64_t replaced = 0;  ///< given up for a newer problem of the same engine
    double gap = 0;              ///< latency / lower bound - 1 of the last plan
  };

  explicit Solver(Answer answer);
  ~Solver();
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;

  void solve(core::SolvePlacement problem);
  [[nodiscard]] Counters counters() const;

 private:
  void run();
  void count(const Result<planner::PlacementDecision>& decision, double seconds);

  const Answer answer_;
  mutable std::mutex mutex_;  // guards the members up to the thread
  std::condition_variable wake_;
  std::deque<core::SolvePlacement> waiting_;
  Counters counters_;
  bool stopping_ = false;
  std::thread thread_;  // last: starts when all else stands
};

}  // namespace kvd::daemon
