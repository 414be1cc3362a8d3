#include "planner/model/tier_rates.hpp"

#include <cmath>

namespace kvd::planner {

Status TierRates::observe(Bytes bytes, Seconds took) {
  if (bytes <= Bytes{0} || !std::isfinite(took.count()) || took.count() <= 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a transfer has bytes above 0 and took a finite time above 0");
  }
  fit_.observe(static_cast<double>(bytes.value), took.count());
  return {};
}

FittedLine::Line TierRates::line() const {
  const FittedLine::Line line = fit_.line();
  if (line.slope == 0 || line.at_zero < 0) return {fit_.mean_y() / fit_.mean_x(), 0};
  return line;
}

BytesPerSecond TierRates::bandwidth() const { return {1 / line().slope}; }

Seconds TierRates::latency() const { return Seconds(line().at_zero); }

}  // namespace kvd::planner
