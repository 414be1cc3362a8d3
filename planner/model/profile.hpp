#pragma once

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "planner/model/seconds.hpp"

namespace kvd::planner {

/// A cost that grows linearly with the tokens of a batch, as OrbitFlow calibrates compute and link.
struct LinearCost {
  Seconds fixed{0};
  Seconds per_token{0};
  [[nodiscard]] Seconds at(Tokens tokens) const {
    return fixed + per_token * static_cast<double>(tokens.value);
  }
};

/// A calibrated cost that follows what is observed.
/// Source: OrbitFlow sec. 4.3 (EWMA and mismatch trigger). The paper gives neither number; 0.25 and
///         0.2 are ours: a step in the cost is followed to 95 % within ten observations, and noise
///         of some percent does not trigger.
/// Owner:  one thread.
class CostProfile {
 public:
  static constexpr double kWeight = 0.25;
  static constexpr double kMismatch = 0.2;

  explicit CostProfile(LinearCost calibrated) : calibrated_(calibrated) {}

  [[nodiscard]] Seconds predict(Tokens tokens) const { return scale_ * calibrated_.at(tokens); }

  /// Takes an observation in. True: it was so far from the prediction that plans made with the
  /// prediction should be made again. Errors: InvalidArgument for an observation that is no time.
  [[nodiscard]] Result<bool> observe(Tokens tokens, Seconds observed);

 private:
  LinearCost calibrated_;
  double scale_ = 1;
};

}  // namespace kvd::planner
