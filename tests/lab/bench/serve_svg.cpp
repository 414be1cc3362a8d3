#include <algorithm>

#include "kvd/sim/chart/chart.hpp"
#include "tests/lab/bench/print.hpp"
#include "tests/lab/bench/serve_figures.hpp"

namespace kvd::bench {
namespace {

/// The mean of a policy's runs in percent, with the spread over them.
sim::ChartPoint point_of(const PolicyRuns& policy, const char* figure, std::size_t at) {
  sim::ChartPoint point{.x = static_cast<double>(at), .low = 100, .high = 0};
  for (const auto& run : policy.runs) {
    const double percent = 100 * value_of(run, figure);
    point.y += percent / static_cast<double>(policy.runs.size());
    point.low = std::min(point.low, percent);
    point.high = std::max(point.high, percent);
  }
  return point;
}

}  // namespace

std::string serve_svg(const ServeStage& stage, const Goals& goals,
                      const std::vector<PolicyRuns>& policies) {
  sim::Chart chart;
  chart.id = "serve";
  chart.title = "SLO attainment as delivered";
  chart.y_label = "%";
  chart.kind = sim::ChartKind::kBars;
  print(chart.x_label, "TTFT %.0f ms, TBT %.1f ms, %.3g requests/s, HBM %s, link %s/s",
        goals.ttft_s * 1e3, goals.tbt_s * 1e3, stage.rate, stage.hbm.c_str(),
        stage.bandwidth.c_str());
  chart.description = chart.title + " by policy: " + chart.x_label;
  chart.series = {{"TTFT", {}}, {"TBT", {}}, {"TPOT", {}}};
  for (const PolicyRuns& policy : policies) {
    const std::size_t at = chart.categories.size();
    chart.categories.push_back(policy.policy);
    chart.series[0].points.push_back(point_of(policy, "ttft_attainment", at));
    chart.series[1].points.push_back(point_of(policy, "tbt_attainment", at));
    chart.series[2].points.push_back(point_of(policy, "tpot_attainment", at));
  }
  return sim::svg_of(chart);
}

}  // namespace kvd::bench
