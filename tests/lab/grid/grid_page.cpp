#include "tests/lab/grid/grid_page.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "kvd/sim/chart/axis.hpp"

namespace kvd::sim::grid {
namespace {

std::string points(double difference) {
  return (difference > 0 ? "+" : "") + number_text(100 * difference);
}

/// A point for each cell, the worst first.
Chart leads_chart(const Verdict& verdict, const std::string& policy) {
  std::vector<double> leads;
  for (const Standing& standing : verdict.cells) leads.push_back(100 * standing.lead());
  std::sort(leads.begin(), leads.end());
  Chart chart{.id = "grid-leads",
              .title = "Lead of " + policy + " over the best other policy of each cell",
              .description = "One value a cell, the worst first: joint attainment of " + policy +
                             " less that of the best other policy, in points.",
              .x_label = "cells, the worst first",
              .y_label = "points of joint attainment"};
  ChartSeries series{policy, {}};
  for (std::size_t i = 0; i < leads.size(); ++i) {
    series.points.push_back({.x = static_cast<double>(i + 1), .y = leads[i]});
  }
  chart.series = {std::move(series)};
  return chart;
}

Chart load_chart(const Verdict& verdict, const std::vector<PlayedCell>& played) {
  struct Sum {
    double sum = 0, count = 0;
  };
  std::map<std::string, std::map<double, Sum>> by_policy;
  for (std::size_t i = 0; i < played.size(); ++i) {
    for (const auto& [policy, outcome] : played[i]) {
      Sum& sum = by_policy[policy][verdict.cells[i].cell->load];
      sum.sum += outcome.mean.joint_attainment;
      ++sum.count;
    }
  }
  Chart chart{.id = "grid-load",
              .title = "Joint attainment by load",
              .description = "The mean over all cells of a load, for each policy.",
              .x_label = "times the knee of fcfs",
              .y_label = "share of requests"};
  for (const auto& [policy, loads] : by_policy) {
    ChartSeries series{policy, {}};
    for (const auto& [load, sum] : loads) {
      series.points.push_back({.x = load, .y = sum.sum / sum.count});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

TextTable behind_table(const Verdict& verdict, double tolerance) {
  TextTable table{"Cells where it is behind by more than " + number_text(100 * tolerance) +
                      " points; in brackets the best other's figure",
                  {"cell", "setting", "joint", "best", "by", "what differs"},
                  {}};
  for (const Standing& s : verdict.behind) {
    table.rows.push_back({s.cell->id, text_of(*s.cell), number_text(s.j), number_text(s.best),
                          s.best_policy, cause_text(s.cause)});
  }
  return table;
}

}  // namespace

std::string cause_text(const nlohmann::ordered_json& cause) {
  std::string text;
  for (const auto& [name, values] : cause.items()) {
    text += text.empty() ? "" : ", ";
    if (values.is_string()) {
      text += values.get<std::string>();
    } else {
      text += name + " " + number_text(values[0].get<double>()) + " (" +
              number_text(values[1].get<double>()) + ")";
    }
  }
  return text;
}

Page page_of(const Verdict& verdict, const std::vector<PlayedCell>& played,
             const std::string& policy, double tolerance) {
  Section leads{"grid-leads-section",
                "Where " + policy + " leads, and where it is behind",
                {},
                {},
                {leads_chart(verdict, policy), load_chart(verdict, played)}};
  Section behind{"grid-behind", "Cells behind", {}, {behind_table(verdict, tolerance)}, {}};
  const std::string summary = std::to_string(verdict.cells.size()) + " cells; " + policy +
                              " is behind by more than " + number_text(100 * tolerance) +
                              " points in " + std::to_string(verdict.behind.size()) +
                              ", at worst by " + number_text(100 * std::max(0.0, verdict.worst)) +
                              "; its mean lead from 0.9 to 1.5 times the knee is " +
                              points(verdict.mean_lead) + " points of joint attainment.";
  return {"kvd-sim: " + policy + " on the grid",
          {summary,
           "Every figure is simulated: kvd's own Controller under a virtual clock. Cells are drawn "
           "from axes that are part of kvd-lab. The knee is the rate up to which fcfs starts 99 % "
           "of the answers in time."},
          {{"The grid", {std::move(leads), std::move(behind)}}}};
}

}  // namespace kvd::sim::grid
