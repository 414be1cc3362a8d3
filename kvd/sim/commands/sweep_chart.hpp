#pragma once

#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/chart/chart.hpp"
#include "kvd/sim/run/metrics.hpp"

namespace kvd::sim {

/// What a sweep found at one value of its parameter.
struct SweepPoint {
  std::string value;
  std::vector<Summary> policies;
};

/// One figure of a sweep, and the conditions it was found under.
struct SweepPicture {
  std::string figure = "joint_attainment";
  std::string parameter;
  std::string setting;
};

/// Errors: InvalidArgument where no figure has this name.
[[nodiscard]] Status check_figure(const std::string& figure);

/// A chart with a line for each policy and the spread over the seeds. The x axis has numbers where
/// all values are numbers; otherwise the values stand side by side as they are. Errors: as
/// check_figure().
[[nodiscard]] Result<Chart> sweep_chart(const SweepPicture& picture,
                                        const std::vector<SweepPoint>& points);

}  // namespace kvd::sim
