#pragma once

#include <string>
#include <vector>

namespace kvd::sim {

/// Maps values to positions along one axis of a chart, and picks round numbers to label it.
class Axis {
 public:
  enum class Scale { kLinear, kLog };

  /// An axis that covers `values`. It leaves out those that are not finite and, with kLog, those
  /// that are not above 0. A linear axis starts at 0 where all values are above 0.
  Axis(const std::vector<double>& values, Scale scale);

  /// 0 at the low end, 1 at the high end; values outside move to the nearer end.
  [[nodiscard]] double position(double value) const;
  /// Whether the axis can show the value at all.
  [[nodiscard]] bool shows(double value) const;
  [[nodiscard]] const std::vector<double>& ticks() const { return ticks_; }
  [[nodiscard]] double low() const { return low_; }
  [[nodiscard]] double high() const { return high_; }

 private:
  void fit_linear();
  void fit_log();

  Scale scale_;
  double low_ = 0;
  double high_ = 1;
  std::vector<double> ticks_;
};

/// At most four significant digits, without an exponent where possible: "0.05", "1,200".
[[nodiscard]] std::string number_text(double value);

}  // namespace kvd::sim
