#pragma once

#include <limits>
#include <string>
#include <vector>

namespace kvd::sim {

/// One value of a series. `low` and `high` bound its spread where they differ.
struct ChartPoint {
  double x = 0;
  double y = 0;
  double low = std::numeric_limits<double>::quiet_NaN();
  double high = std::numeric_limits<double>::quiet_NaN();
};

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;
};

enum class ChartKind { kLines, kBars };

/// What a chart shows, without a word about how it is drawn. Where `categories` are given, x is an
/// index into them. A y that is no number is a gap, and a dash in the table.
struct Chart {
  std::string id;  ///< unique in a page; letters, digits and '-'
  std::string title;
  std::string description;  ///< one or two sentences for readers who cannot see it
  ChartKind kind = ChartKind::kLines;
  std::string x_label;
  std::string y_label;
  bool log_x = false;
  bool log_y = false;
  std::vector<std::string> categories = {};
  std::vector<ChartSeries> series = {};
};

/// A whole SVG document with <title> and <desc>, drawn without scripts or outside resources.
[[nodiscard]] std::string svg_of(const Chart& chart);

/// The chart's numbers as an HTML table: a row for each x, a column for each series.
[[nodiscard]] std::string table_of(const Chart& chart);

/// Escapes text for XML and HTML, in elements and quoted attributes.
[[nodiscard]] std::string escaped(const std::string& text);

}  // namespace kvd::sim
