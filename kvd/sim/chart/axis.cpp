#include "kvd/sim/chart/axis.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace kvd::sim {
namespace {

constexpr int kTicks = 5;

/// The next of 1, 2, 2.5, 5, 10 times a power of ten.
double round_step(double raw) {
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (raw <= factor * power * (1 + 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::string with_thousands(std::string digits) {
  const auto start = digits.starts_with('-') ? 1U : 0U;
  for (auto at = digits.size(); at > start + 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

}  // namespace

Axis::Axis(const std::vector<double>& values, Scale scale) : scale_(scale) {
  bool any = false;
  for (const double value : values) {
    if (!shows(value)) continue;
    low_ = any ? std::min(low_, value) : value;
    high_ = any ? std::max(high_, value) : value;
    any = true;
  }
  if (!any) low_ = scale == Scale::kLog ? 1 : 0, high_ = scale == Scale::kLog ? 10 : 1;
  scale == Scale::kLog ? fit_log() : fit_linear();
}

bool Axis::shows(double value) const {
  return std::isfinite(value) && (scale_ == Scale::kLinear || value > 0);
}

double Axis::position(double value) const {
  const auto along = [this](double v) { return scale_ == Scale::kLog ? std::log10(v) : v; };
  const double at = (along(value) - along(low_)) / (along(high_) - along(low_));
  return std::clamp(at, 0.0, 1.0);
}

void Axis::fit_linear() {
  if (low_ > 0) low_ = 0;
  if (high_ < 0) high_ = 0;
  if (high_ == low_) high_ = low_ + 1;
  const double step = round_step((high_ - low_) / kTicks);
  // A value that is a multiple of the step except for rounding must not cost another step.
  low_ = std::floor(low_ / step + 1e-9) * step;
  high_ = std::ceil(high_ / step - 1e-9) * step;
  const auto count = std::lround((high_ - low_) / step);
  for (long i = 0; i <= count; ++i) ticks_.push_back(low_ + static_cast<double>(i) * step);
}

void Axis::fit_log() {
  low_ = std::pow(10.0, std::floor(std::log10(low_) + 1e-9));
  high_ = std::pow(10.0, std::ceil(std::log10(high_) - 1e-9));
  if (high_ <= low_) high_ = low_ * 10;
  for (double tick = low_; tick <= high_ * (1 + 1e-9); tick *= 10) ticks_.push_back(tick);
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return "–";
  if (value == 0) return "0";
  char text[64];
  if (std::abs(value) >= 999.95) {
    std::snprintf(text, sizeof text, "%.0f", value);
    return with_thousands(text);
  }
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

}  // namespace kvd::sim
