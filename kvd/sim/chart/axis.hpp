#pragma once

#include <string>
#include <vector>

namespace kvd::sim {

/// Maps values to positions along one axis of a chart, with round numbers to label it by.
class Axis {
 public:
  enum class Scale { kLinear, kLog };

  /// An axis that covers `values` (those that are not finite, and with kLog those not above 0, are
  /// left out); a linear one starts at 0 where everything is above 0.
  Axis(const std::vector<double>& values, Scale scale);

  /// 0 at the low end, 1 at the high one; values outside are brought to the nearer end.
  [[nodiscard]] double position(double value) const;
  /// Whether the axis can show it at all.
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

/// At most four significant digits, without an exponent where one can do without: "0.05", "1,200".
[[nodiscard]] std::string number_text(double value);

}  // namespace kvd::sim
