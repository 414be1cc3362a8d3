#include "kvd/sim/commands/table.hpp"

#include <algorithm>
#include <cstdio>

namespace kvd::sim {
namespace {

struct Column {
  const char* head;
  double Metrics::*figure;
};
using Columns = std::vector<Column>;

/// Shows which requests were served in time, and what a share of requests in time hides.
const Columns kGoals = {
    {"joint", &Metrics::joint_attainment},        {"gap s", &Metrics::longest_raw_gap_s},
    {"gap>1s", &Metrics::second_gap_share},       {"ttft ok", &Metrics::ttft_attainment},
    {"mean ok", &Metrics::tbt_mean_attainment},   {"tpot ok", &Metrics::tpot_attainment},
    {"tbt ok", &Metrics::tbt_attainment},         {"missed", &Metrics::missed_intervals},
    {"long ok", &Metrics::long_joint_attainment}, {"tok/s", &Metrics::throughput_tps},
    {"req/s", &Metrics::throughput_rps}};
/// Times in seconds, and what the machine did.
const Columns kTimes = {{"ttft p50", &Metrics::ttft_p50_s},
                        {"p99", &Metrics::ttft_p99_s},
                        {"max", &Metrics::ttft_max_s},
                        {"long p99", &Metrics::long_ttft_p99_s},
                        {"tbt p99", &Metrics::tbt_p99_s},
                        {"gap p99", &Metrics::longest_gap_p99_s},
                        {"held", &Metrics::held_back_share},
                        {"for s", &Metrics::held_back_mean_s},
                        {"layers", &Metrics::layerwise_prefills},
                        {"blocks", &Metrics::blocks_moved_per_step}};

std::vector<std::string> figures_row(const std::string& name, const Columns& shown,
                                     const Metrics& metrics) {
  std::vector<std::string> row = {name};
  for (const Column& column : shown) row.push_back(figure_text(metrics.*column.figure));
  return row;
}

using Rows = std::vector<std::vector<std::string>>;

void add_rows(const Columns& shown, const Summary& summary, Rows& rows) {
  rows.push_back(figures_row(summary.policy, shown, summary.mean));
  if (summary.seeds < 2) return;
  rows.push_back(figures_row("  least", shown, summary.low));
  rows.push_back(figures_row("  greatest", shown, summary.high));
}

/// `parts`: whether each policy's parts are shown as well.
std::string one_table(const std::string& head, const Columns& shown,
                      const std::vector<Summary>& summaries, bool parts) {
  Rows rows = {{head}};
  for (const Column& column : shown) rows.front().push_back(column.head);
  for (const Summary& summary : summaries) {
    add_rows(shown, summary, rows);
    if (!parts) continue;
    for (Summary part : summary.parts) {
      part.policy = "  " + part.policy;
      add_rows(shown, part, rows);
    }
  }
  return columns(rows);
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

std::string comparison_table(const std::vector<Summary>& policies, const std::string& head) {
  return goals_table(policies, head) + "\n" + one_table(head, kTimes, policies, false);
}

std::string goals_table(const std::vector<Summary>& rows, const std::string& head) {
  return one_table(head, kGoals, rows, true);
}

std::string metrics_table(const Metrics& metrics) {
  std::vector<std::vector<std::string>> rows;
  for (const MetricName& metric : metric_names()) {
    rows.push_back({metric.name, figure_text(metrics.*metric.figure)});
  }
  return columns(rows);
}

}  // namespace kvd::sim
