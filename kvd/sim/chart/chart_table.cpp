#include <algorithm>
#include <cmath>

#include "kvd/sim/chart/axis.hpp"
#include "kvd/sim/chart/chart.hpp"

namespace kvd::sim {
namespace {

/// Every x of any series, once and ascending.
std::vector<double> rows_of(const Chart& chart) {
  std::vector<double> rows;
  for (const auto& series : chart.series) {
    for (const auto& point : series.points) rows.push_back(point.x);
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

std::string cell_of(const ChartSeries& series, double x) {
  for (const auto& point : series.points) {
    if (point.x != x) continue;
    std::string text = number_text(point.y);
    if (std::isfinite(point.low) && std::isfinite(point.high) && point.low != point.high) {
      text += " [" + number_text(point.low) + " to " + number_text(point.high) + "]";
    }
    return text;
  }
  return "–";
}

std::string row_name(const Chart& chart, double x) {
  return chart.categories.empty() ? number_text(x) : chart.categories[static_cast<std::size_t>(x)];
}

}  // namespace

std::string table_of(const Chart& chart) {
  std::string out = "<table>\n<caption>" + escaped(chart.y_label) +
                    "</caption>\n<thead><tr><th scope=\"col\">" + escaped(chart.x_label) + "</th>";
  for (const auto& series : chart.series) {
    out += "<th scope=\"col\">" + escaped(series.name) + "</th>";
  }
  out += "</tr></thead>\n<tbody>\n";
  for (const double x : rows_of(chart)) {
    out += "<tr><th scope=\"row\">" + escaped(row_name(chart, x)) + "</th>";
    for (const auto& series : chart.series) out += "<td>" + cell_of(series, x) + "</td>";
    out += "</tr>\n";
  }
  return out + "</tbody>\n</table>\n";
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace kvd::sim
