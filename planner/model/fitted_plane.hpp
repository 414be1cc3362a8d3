#pragma once

namespace kvd::planner {

/// A plane y = at_zero + by_first * x1 + by_second * x2 through observations, each of which counts
/// `keep` times as much as the one after it: weighted least squares with forgetting; slopes are
/// never negative. It tells apart two causes of which one rises while the other falls; two lines
/// cannot.
/// Source: kvd design.
/// Owner:  one thread.
class FittedPlane {
 public:
  struct Plane {
    double by_first = 0;
    double by_second = 0;
    double at_zero = 0;

    [[nodiscard]] double at(double first, double second) const {
      return at_zero + by_first * first + by_second * second;
    }
  };

  explicit FittedPlane(double keep) : keep_(keep) {}

  void observe(double first, double second, double y) {
    weight_ = weight_ * keep_ + 1;
    const double share = 1 / weight_;
    const double more_first = first - first_;
    const double more_second = second - second_;
    const double more_y = y - y_;
    first_ += share * more_first;
    second_ += share * more_second;
    y_ += share * more_y;
    const auto follow = [share](double& sum, double product) {
      sum = (1 - share) * (sum + share * product);
    };
    follow(spread_first_, more_first * more_first);
    follow(spread_second_, more_second * more_second);
    follow(spread_both_, more_first * more_second);
    follow(first_with_y_, more_first * more_y);
    follow(second_with_y_, more_second * more_y);
  }

  [[nodiscard]] bool measured() const { return weight_ > 0; }
  /// A slope counts once its x has spread by a twentieth of its mean (below that, noise makes it)
  /// and if it points up. Precondition: measured().
  [[nodiscard]] Plane plane() const {
    const bool first = spread_first_ > kSpread * first_ * first_;
    const bool second = spread_second_ > kSpread * second_ * second_;
    const double apart = spread_first_ * spread_second_ - spread_both_ * spread_both_;
    if (first && second && apart > kApart * spread_first_ * spread_second_) {
      const Plane both =
          through((first_with_y_ * spread_second_ - second_with_y_ * spread_both_) / apart,
                  (second_with_y_ * spread_first_ - first_with_y_ * spread_both_) / apart);
      if (both.by_first >= 0 && both.by_second >= 0) return both;
    }
    const double alone_first = first && first_with_y_ > 0 ? first_with_y_ / spread_first_ : 0;
    const double alone_second = second && second_with_y_ > 0 ? second_with_y_ / spread_second_ : 0;
    const bool second_says_more = alone_second * second_with_y_ > alone_first * first_with_y_;
    return second_says_more ? through(0, alone_second) : through(alone_first, 0);
  }

 private:
  static constexpr double kSpread = 0.0025;
  static constexpr double kApart = 0.05;  // 1 less the square of how much both move together

  [[nodiscard]] Plane through(double by_first, double by_second) const {
    return {by_first, by_second, y_ - by_first * first_ - by_second * second_};
  }

  double keep_;
  double weight_ = 0;
  double first_ = 0, second_ = 0, y_ = 0;  // weighted means
  double spread_first_ = 0, spread_second_ = 0, spread_both_ = 0;
  double first_with_y_ = 0, second_with_y_ = 0;
};

}  // namespace kvd::planner
