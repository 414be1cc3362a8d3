#include "kvd/sim/commands/table.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace kvd::sim {
namespace {

struct Column {
  const char* head;
  double Metrics::*figure;
};

constexpr std::array<Column, 12> kColumns = {{{"ttft ok", &Metrics::ttft_attainment},
                                              {"tbt ok", &Metrics::tbt_attainment},
                                              {"mean tbt ok", &Metrics::tbt_mean_attainment},
                                              {"tpot ok", &Metrics::tpot_attainment},
                                              {"joint", &Metrics::joint_attainment},
                                              {"intervals", &Metrics::interval_attainment},
                                              {"ttft s", &Metrics::ttft_mean_s},
                                              {"p99 ttft s", &Metrics::ttft_p99_s},
                                              {"p99 tbt s", &Metrics::tbt_p99_s},
                                              {"longest gap s", &Metrics::longest_gap_p99_s},
                                              {"req/s", &Metrics::throughput_rps},
                                              {"blocks/step", &Metrics::blocks_moved_per_step}}};

std::vector<std::string> figures_row(const std::string& name, const Metrics& metrics) {
  std::vector<std::string> row = {name};
  for (const Column& column : kColumns) row.push_back(figure_text(metrics.*column.figure));
  return row;
}

}  // namespace

std::string figure_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      const bool last = i + 1 == row.size();
      text += i == 0 ? row[i] + (last ? "" : padding) : "  " + padding + row[i];
    }
    text += "\n";
  }
  return text;
}

std::string comparison_table(const std::vector<Summary>& policies) {
  std::vector<std::vector<std::string>> rows = {{"policy"}};
  for (const Column& column : kColumns) rows.front().push_back(column.head);
  for (const Summary& summary : policies) {
    rows.push_back(figures_row(summary.policy, summary.mean));
    if (summary.seeds < 2) continue;
    rows.push_back(figures_row("  least", summary.low));
    rows.push_back(figures_row("  greatest", summary.high));
  }
  return columns(rows);
}

std::string metrics_table(const Metrics& metrics) {
  std::vector<std::vector<std::string>> rows;
  for (const MetricName& metric : metric_names()) {
    rows.push_back({metric.name, figure_text(metrics.*metric.figure)});
  }
  return columns(rows);
}

}  // namespace kvd::sim
