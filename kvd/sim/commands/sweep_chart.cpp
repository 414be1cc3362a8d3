#include "kvd/sim/commands/sweep_chart.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace kvd::sim {
namespace {

Result<double Metrics::*> figure_named(const std::string& name) {
  const auto& names = metric_names();
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const MetricName& metric) { return name == metric.name; });
  if (found != names.end()) return found->figure;
  return make_error(ErrorCode::kInvalidArgument,
                    "no figure \"" + name + "\"; their names: kvd/sim/METRICS.md, run --json");
}

bool is_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return end != text.c_str() && *end == '\0';
}

/// Empty where all values are numbers.
std::vector<std::string> categories_of(const std::vector<SweepPoint>& points) {
  std::vector<std::string> values;
  values.reserve(points.size());
  for (const SweepPoint& point : points) values.push_back(point.value);
  if (std::all_of(values.begin(), values.end(), is_number)) values.clear();
  return values;
}

}  // namespace

Status check_figure(const std::string& figure) {
  KVD_TRY(figure_named(figure));
  return {};
}

Result<Chart> sweep_chart(const SweepPicture& picture, const std::vector<SweepPoint>& points) {
  KVD_ASSIGN_OR_RETURN(const auto figure, figure_named(picture.figure));
  Chart chart{.id = "sweep",
              .title = "Simulated: " + picture.setting,
              .description = picture.figure + " by " + picture.parameter + " for each policy, " +
                             "with the least and the greatest of the seeds.",
              .x_label = picture.parameter,
              .y_label = picture.figure,
              .categories = categories_of(points)};
  for (std::size_t x = 0; x < points.size(); ++x) {
    const double at = chart.categories.empty() ? std::strtod(points[x].value.c_str(), nullptr)
                                               : static_cast<double>(x);
    for (std::size_t p = 0; p < points[x].policies.size(); ++p) {
      const Summary& summary = points[x].policies[p];
      if (x == 0) chart.series.push_back({summary.policy, {}});
      chart.series[p].points.push_back(
          {at, summary.mean.*figure, summary.low.*figure, summary.high.*figure});
    }
  }
  return chart;
}

}  // namespace kvd::sim
