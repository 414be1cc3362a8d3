#pragma once

#include <vector>

#include "ipc/vocabulary/units.hpp"
#include "kvd/sim/workload/random.hpp"

namespace kvd::sim {

/// A distribution of lengths given by some of its quantiles. Between two of them the logarithm of
/// the length is linear in the share.
class QuantileLengths {
 public:
  struct Quantile {
    double share;  ///< ascending, the first 0, the last 1
    double tokens;
  };
  explicit QuantileLengths(std::vector<Quantile> quantiles) : quantiles_(std::move(quantiles)) {}

  [[nodiscard]] double at(double share) const;
  [[nodiscard]] Tokens draw(Random& random) const;

 private:
  std::vector<Quantile> quantiles_;
};

/// A log-normal distribution with everything outside [low, high] moved to the nearer end, whose
/// mean after that is exactly `mean`.
class ClippedLogNormal {
 public:
  /// Preconditions: 0 < low < mean < high, sigma > 0.
  ClippedLogNormal(double mean, double sigma, double low, double high);

  [[nodiscard]] Tokens draw(Random& random) const;

 private:
  double mu_;
  double sigma_;
  double low_;
  double high_;
};

}  // namespace kvd::sim
