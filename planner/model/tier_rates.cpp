#include "planner/model/tier_rates.hpp"

#include <cmath>

namespace kvd::planner {

Status TierRates::observe(Bytes bytes, Seconds took) {
  if (bytes <= Bytes{0} || !std::isfinite(took.count()) || took.count() <= 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a transfer has bytes above 0 and took a finite time above 0");
  }
  const auto x = static_cast<double>(bytes.value);
  const double y = took.count();
  const double expected = measured() ? line().at_zero + line().slope * x : y;
  const int way = y > kStep * expected ? 1 : kStep * y < expected ? -1 : 0;
  if (way == 0 || way * misfits_ <= 0) new_ = FittedLine(kKeep);
  misfits_ = way == 0 ? 0 : way;
  fit_.observe(x, y);
  if (way != 0) {
    const bool again = new_.measured();
    new_.observe(x, y);
    if (again) fit_ = new_;
  }
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
