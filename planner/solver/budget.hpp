#pragma once

#include "planner/solver/placement_problem.hpp"

namespace kvd::planner {

/// Counts nodes and, only where a time limit is set, reads the clock.
/// Owner: one thread.
class Budget {
 public:
  Budget(const SolveLimits& limits, const Clock& clock) : clock_(clock), nodes_(limits.nodes) {
    if (limits.time) deadline_ = clock.now() + *limits.time;
  }
  void count_node() { ++used_; }
  [[nodiscard]] std::int64_t used() const { return used_; }
  [[nodiscard]] bool spent() {
    // Latched, so that every level of the search sees the end once it has come.
    over_ = over_ || (nodes_ && used_ >= *nodes_) || (deadline_ && clock_.now() >= *deadline_);
    return over_;
  }

 private:
  const Clock& clock_;
  std::optional<std::int64_t> nodes_;
  std::optional<TimePoint> deadline_;
  std::int64_t used_ = 0;
  bool over_ = false;
};

}  // namespace kvd::planner
