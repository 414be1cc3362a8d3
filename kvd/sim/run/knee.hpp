#pragma once

#include <functional>
#include <vector>

#include "ipc/vocabulary/result.hpp"

namespace kvd::sim {

struct KneePoint {
  double rate = 0;  ///< requests a second
  double attainment = 0;
};

struct Knee {
  /// The highest rate found at which the attainment still meets the threshold.
  double rate = 0;
  std::vector<KneePoint> points;  ///< every rate tried, in order of trial
};

/// Searches for the rate at which `attainment` falls below `threshold`: it doubles or halves from
/// `start` until the knee lies between two rates, then bisects until these are within `precision`
/// of each other. Errors: InvalidArgument for a start that is no rate; NotFound when the threshold
/// is met, or missed, at every rate within a factor of 2^20 of the start; those of `attainment`.
[[nodiscard]] Result<Knee> find_knee(const std::function<Result<double>(double rate)>& attainment,
                                     double start, double threshold, double precision);

}  // namespace kvd::sim
