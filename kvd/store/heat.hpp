#pragma once

#include <algorithm>
#include <cmath>

#include "ipc/vocabulary/units.hpp"

namespace kvd::store {

/// How often something was asked for of late: every time counts half as much after each half-life.
/// Kept as log2 of the sum of 2^(time / half-life) over all times, which no passing of time
/// changes: of two blocks the one with the greater heat was, is and stays the more wanted one until
/// either is asked for again. A half-life of nothing would make it the last time, one without end
/// the count.
///
/// Source: LRFU's combined recency and frequency (Lee et al., IEEE Trans. Computers 50(12), 2001),
/// in logarithms.
class Heat {
 public:
  explicit Heat(Nanoseconds half_life) : half_life_(to_seconds(half_life)) {}

  /// The heat of something asked for once.
  [[nodiscard]] double first(TimePoint now) const { return to_seconds(now) / half_life_; }
  /// The heat of something that had `heat` and is asked for once more.
  [[nodiscard]] double again(double heat, TimePoint now) const {
    const double once = first(now);
    const auto apart = static_cast<float>(std::abs(once - heat));
    return std::max(once, heat) + std::log2(1.0F + std::exp2(-apart));
  }
  /// The times, each as much as it counts now.
  [[nodiscard]] double frequency(double heat, TimePoint now) const {
    return std::exp2(heat - first(now));
  }

 private:
  double half_life_;
};

/// Heats of many that are asked for at one moment. The blocks of a chain mostly have the same, so
/// the last answer is kept: logarithms cost more than all else a lookup does to a block.
class HeatNow {
 public:
  HeatNow(const Heat& heat, TimePoint now)
      : heat_(heat), now_(now), before_(heat.first(now)), after_(heat.again(before_, now)) {}

  [[nodiscard]] double again(double heat) {
    if (heat != before_) {
      before_ = heat;
      after_ = heat_.again(heat, now_);
    }
    return after_;
  }

 private:
  const Heat& heat_;
  TimePoint now_;
  double before_, after_;
};

}  // namespace kvd::store
