#pragma once

namespace kvd::planner {

/// A line y = at_zero + slope * x through observations, each of which counts `keep` times as much
/// as the one after it: weighted least squares with forgetting.
/// Source: kvd design.
/// Owner:  one thread.
class FittedLine {
 public:
  struct Line {
    double slope = 0;
    double at_zero = 0;
  };

  explicit FittedLine(double keep) : keep_(keep) {}

  void observe(double x, double y) {
    weight_ = weight_ * keep_ + 1;
    const double share = 1 / weight_;
    const double more_x = x - x_;
    const double more_y = y - y_;
    x_ += share * more_x;
    y_ += share * more_y;
    spread_ = (1 - share) * (spread_ + share * more_x * more_x);
    together_ = (1 - share) * (together_ + share * more_x * more_y);
  }

  [[nodiscard]] bool measured() const { return weight_ > 0; }
  [[nodiscard]] double mean_x() const { return x_; }
  [[nodiscard]] double mean_y() const { return y_; }
  /// A slope counts once x has spread by a twentieth of its mean (below that, noise makes it) and
  /// if it points up. Without a slope the line is the mean. Precondition: measured().
  [[nodiscard]] Line line() const {
    const bool has_slope = spread_ > 0.0025 * x_ * x_ && together_ > 0;
    const double slope = has_slope ? together_ / spread_ : 0;
    return {slope, y_ - slope * x_};
  }
  [[nodiscard]] double at(double x) const { return line().at_zero + line().slope * x; }

 private:
  double keep_;
  double weight_ = 0;
  double x_ = 0;  // weighted means
  double y_ = 0;
  double spread_ = 0;  // weighted variance of x, and covariance with y
  double together_ = 0;
};

}  // namespace kvd::planner
