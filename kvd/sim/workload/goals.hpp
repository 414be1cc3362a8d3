#pragma once

#include <cstdint>
#include <span>

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {

/// A share of the requests with goals of its own, for example a strict tenth.
struct GoalClass {
  Seconds ttft{0};
  Seconds tbt{0};  ///< the goal of the mean as well
  double share = 0;
};

/// Gives randomly chosen requests goals; those that no class gets keep what they have.
/// Source: kvd design. Errors: InvalidArgument for a goal outside 1e-6 to 86400 seconds, for a
/// share that is not above 0, and for shares that add up to more than 1.
[[nodiscard]] Status assign_goals(Workload& workload, std::span<const GoalClass> classes,
                                  std::uint64_t seed);

}  // namespace kvd::sim
