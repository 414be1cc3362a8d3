#include "planner/model/tier_rates.hpp"

#include <cmath>

namespace kvd::planner {

Status TierRates::observe(Bytes bytes, Seconds took) {
  if (bytes <= Bytes{0} || !std::isfinite(took.count()) || took.count() <= 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a transfer has bytes above 0 and took a finite time above 0");
  }
  weight_ = weight_ * kKeep + 1;
  const double share = 1 / weight_;
  const double more_bytes = static_cast<double>(bytes.value) - bytes_;
  const double more_seconds = took.count() - seconds_;
  bytes_ += share * more_bytes;
  seconds_ += share * more_seconds;
  spread_ = (1 - share) * (spread_ + share * more_bytes * more_bytes);
  together_ = (1 - share) * (together_ + share * more_bytes * more_seconds);
  return {};
}

TierRates::Line TierRates::line() const {
  // A twentieth of the mean size: below that noise makes the slope.
  const bool has_slope = spread_ > 0.0025 * bytes_ * bytes_ && together_ > 0;
  const double slope = has_slope ? together_ / spread_ : 0;
  const double rest = seconds_ - slope * bytes_;
  if (!has_slope || rest < 0) return {seconds_ / bytes_, 0};
  return {slope, rest};
}

BytesPerSecond TierRates::bandwidth() const { return {1 / line().per_byte}; }

Seconds TierRates::latency() const { return Seconds(line().at_zero); }

}  // namespace kvd::planner
