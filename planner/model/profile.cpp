#include "planner/model/profile.hpp"

#include <cmath>

namespace kvd::planner {

Result<bool> CostProfile::observe(Tokens tokens, Seconds observed) {
  const double base = calibrated_.at(tokens).count();
  if (!std::isfinite(observed.count()) || observed.count() <= 0 || !(base > 0)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "an observed and a calibrated time must be finite and above 0");
  }
  const double predicted = predict(tokens).count();
  const bool mismatch = std::abs(observed.count() - predicted) > kMismatch * predicted;
  scale_ += kWeight * (observed.count() / base - scale_);
  return mismatch;
}

}  // namespace kvd::planner
