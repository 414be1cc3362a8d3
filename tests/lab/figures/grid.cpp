#include "tests/lab/figures/grid.hpp"

#include <algorithm>

#include "kvd/sim/run/summary_json.hpp"

namespace kvd::sim {
namespace {

ChartPoint point_of(double x, const Summary& summary, const Shown& shown) {
  return {x, summary.mean.*shown.figure * shown.scale, summary.low.*shown.figure * shown.scale,
          summary.high.*shown.figure * shown.scale};
}

}  // namespace

const Summary& GridResult::at(const std::string& policy, double x) const {
  const auto column = std::find(grid.policies.begin(), grid.policies.end(), policy);
  const auto row = std::find(grid.xs.begin(), grid.xs.end(), x);
  KVD_CHECK(column != grid.policies.end() && row != grid.xs.end(), "a point that was not measured");
  return rows[static_cast<std::size_t>(row - grid.xs.begin())]
             [static_cast<std::size_t>(column - grid.policies.begin())];
}

Result<GridResult> measure_grid(Lab& lab, const Grid& grid) {
  GridResult result{grid, {}};
  const std::size_t all = grid.xs.size() * grid.policies.size();
  for (std::size_t x = 0; x < grid.xs.size(); ++x) {
    result.rows.emplace_back();
    for (const std::string& policy : grid.policies) {
      KVD_ASSIGN_OR_RETURN(Summary summary, lab.measure(grid.trial(policy, grid.xs[x])));
      summary.policy = policy;
      result.rows.back().push_back(std::move(summary));
      lab.tell(grid.figure, x * grid.policies.size() + result.rows.back().size(), all);
    }
  }
  return result;
}

Chart chart_of(const GridResult& result, const Shown& shown) {
  Chart chart{.id = shown.id,
              .title = shown.title,
              .description = shown.y_label + " by " + result.grid.x_label +
                             " for each policy, in " + result.grid.unit + ".",
              .kind = ChartKind::kLines,
              .x_label = result.grid.x_label,
              .y_label = shown.y_label,
              .log_y = shown.log_y};
  for (std::size_t p = 0; p < result.grid.policies.size(); ++p) {
    ChartSeries series{result.grid.policies[p], {}};
    for (std::size_t x = 0; x < result.grid.xs.size(); ++x) {
      series.points.push_back(point_of(result.grid.xs[x], result.rows[x][p], shown));
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

Chart bars_of(const GridResult& result, double x, const Shown& shown) {
  Chart chart{.id = shown.id,
              .title = shown.title,
              .description = shown.y_label + " for each policy, in " + result.grid.unit + ".",
              .kind = ChartKind::kBars,
              .x_label = "policy",
              .y_label = shown.y_label,
              .log_y = shown.log_y,
              .categories = result.grid.policies,
              .series = {{"", {}}}};
  for (std::size_t p = 0; p < result.grid.policies.size(); ++p) {
    chart.series[0].points.push_back(
        point_of(static_cast<double>(p), result.at(result.grid.policies[p], x), shown));
  }
  return chart;
}

nlohmann::ordered_json json_of(const GridResult& result) {
  const Grid& grid = result.grid;
  auto json = comparison_json(grid.figure, grid.unit, result.rows.back());
  if (grid.xs.size() == 1) return json;
  json["points"] = nlohmann::ordered_json::array();
  for (std::size_t x = 0; x < grid.xs.size(); ++x) {
    auto point = comparison_json(grid.figure, grid.unit, result.rows[x]);
    json["points"].push_back(
        {{grid.x_name, grid.xs[x]}, {"policies", std::move(point["policies"])}});
  }
  return json;
}

}  // namespace kvd::sim
