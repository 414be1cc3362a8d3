#include "kvd/sim/workload/goals.hpp"

#include "kvd/sim/workload/random.hpp"

namespace kvd::sim {
namespace {

/// This form fails for NaN.
bool is_goal(Seconds goal) { return goal.count() >= 1e-6 && goal.count() <= 86400; }

}  // namespace

Status assign_goals(Workload& workload, std::span<const GoalClass> classes, std::uint64_t seed) {
  double all = 0;
  for (const GoalClass& one : classes) {
    if (!is_goal(one.ttft) || !is_goal(one.tbt)) {
      return make_error(ErrorCode::kInvalidArgument, "a goal must be from 1e-6 to 86400 seconds");
    }
    all += one.share;
    if (!(one.share > 0) || !(all <= 1)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "shares of requests are above 0, and at most 1 together");
    }
  }
  if (classes.empty()) return {};
  // Uses other random numbers than those that made the workload.
  Random random(seed ^ 0x5bf03635d78e1c4b);
  for (Arrival& arrival : workload) {
    double drawn = random.uniform();
    for (const GoalClass& one : classes) {
      if (drawn < one.share) {
        arrival.ttft_slo = one.ttft;
        arrival.tbt_slo = arrival.tpot_slo = one.tbt;
        break;
      }
      drawn -= one.share;
    }
  }
  return {};
}

}  // namespace kvd::sim
