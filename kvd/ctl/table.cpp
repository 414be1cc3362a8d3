#include "kvd/ctl/table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace kvd::ctl {
namespace {

bool is_numeric(const std::string& cell) {
  return !cell.empty() &&
         ((cell[0] >= '0' && cell[0] <= '9') || (cell[0] == '-' && cell.size() > 1));
}

/// Shows one decimal where it matters: "1.5", "256".
std::string short_number(double value) {
  char text[32];
  const bool whole = std::abs(value) >= 99.95 || std::abs(value - std::round(value)) < 0.05;
  std::snprintf(text, sizeof text, whole ? "%.0f" : "%.1f", value);
  return text;
}

std::string clock_text(long large, const char* unit, long small, const char* small_unit) {
  char text[48];
  std::snprintf(text, sizeof text, "%ld%s %02ld%s", large, unit, small, small_unit);
  return text;
}

}  // namespace

std::string Table::render() const {
  const std::size_t columns = rows_.front().size();
  std::vector<std::size_t> widths(columns);
  std::vector<bool> right(columns, rows_.size() > 1);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      widths[c] = std::max(widths[c], rows_[r][c].size());
      if (r > 0 && !is_numeric(rows_[r][c])) right[c] = false;
    }
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < columns; ++c) {
      const std::string gap(widths[c] - row[c].size(), ' ');
      line += (c > 0 ? "  " : "") + (right[c] ? gap + row[c] : row[c] + gap);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string bytes_text(double bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1023.95 && unit + 1 < kUnits.size()) bytes /= 1024, ++unit;
  return short_number(bytes) + " " + kUnits[unit];
}

std::string seconds_text(double seconds) {
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  if (size < 0.9995e-3) return short_number(seconds * 1e6) + " us";
  if (size < 0.9995) return short_number(seconds * 1e3) + " ms";
  if (size < 100) return short_number(seconds) + " s";
  const long whole = std::lround(seconds);
  if (size < 7200) return clock_text(whole / 60, "m", std::labs(whole % 60), "s");
  return clock_text(whole / 3600, "h", std::labs(whole % 3600) / 60, "m");
}

}  // namespace kvd::ctl
