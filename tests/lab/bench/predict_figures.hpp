#pragma once

#include <span>
#include <vector>

namespace kvd::bench {

/// An iteration's time under one plan.
struct Prediction {
  double predicted_s = 0;
  double measured_s = 0;  ///< above 0

  /// The error as a share of the measured time.
  [[nodiscard]] double error() const {
    const double difference = predicted_s - measured_s;
    return (difference < 0 ? -difference : difference) / measured_s;
  }
};

/// The smallest error that at least `share` of the predictions do not exceed.
/// Precondition: some predictions, 0 < share <= 1.
[[nodiscard]] double error_quantile(std::span<const Prediction> predictions, double share);

/// Spearman's: 1 where the slower prediction is always the slower iteration, -1 where it is always
/// the faster one; equal values share the mean of their ranks. 0 where either side is all equal.
[[nodiscard]] double rank_correlation(std::span<const Prediction> predictions);

}  // namespace kvd::bench
