#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvd::metrics {

enum class MetricType : std::uint8_t { kCounter, kGauge, kHistogram };

/// A label and the values that it can take. A label without values is open (an engine, a policy
/// name), so its series are not known before a sample comes.
struct Label {
  std::string_view name;
  std::span<const std::string_view> values;
  [[nodiscard]] constexpr bool open() const { return values.empty(); }
};

/// What a user reads about one metric, and where it is drawn.
struct Metric {
  static constexpr std::size_t kMaxLabels = 5;

  std::string_view name;
  MetricType type = MetricType::kGauge;
  std::string_view unit;  ///< base unit; "" for counts of things
  std::array<Label, kMaxLabels> label_slots{};
  std::string_view help;
  std::string_view panel;  ///< row of the dashboard in which it has its panel
  /// Upper bounds of a histogram's buckets, ascending. One more bucket is for values above them
  /// all.
  std::span<const double> bounds{};

  [[nodiscard]] constexpr std::span<const Label> labels() const {
    std::size_t used = 0;
    while (used < kMaxLabels && !label_slots[used].name.empty()) ++used;
    return {label_slots.data(), used};
  }
};

/// Every metric of kvd, once, sorted by name.
/// Source: kvd/DESIGN.md "What operators see and change".
[[nodiscard]] std::span<const Metric> catalogue();

/// Null when there is no such metric. O(log n).
[[nodiscard]] const Metric* find(std::string_view name);

}  // namespace kvd::metrics
