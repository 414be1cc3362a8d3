#pragma once

#include <algorithm>

#include "planner/solver/placement_problem.hpp"

namespace kvd::planner {

/// Counts nodes and, only where a time limit is set, reads the clock.
/// Owner: one thread.
class Budget {
 public:
  /// `layers` says how much work lies between two looks at the clock.
  Budget(const SolveLimits& limits, const Clock& clock, std::size_t layers)
      : clock_(clock),
        nodes_(limits.nodes),
        stride_(static_cast<std::uint32_t>(std::clamp<std::size_t>(512 / layers, 1, 16))) {
    if (limits.time) deadline_ = clock.now() + *limits.time;
  }
  void count_node() { ++used_; }
  [[nodiscard]] std::int64_t used() const { return used_; }
  /// As spent(), for inner loops: looking at the clock costs as much as evaluating a small plan, so
  /// most calls return the last answer.
  [[nodiscard]] bool spent_lately() { return ++looks_ % stride_ == 0 ? spent() : over_; }
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
  std::uint32_t stride_;
  std::uint32_t looks_ = 0;
};

}  // namespace kvd::planner
