#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/lab/figures/figure.hpp"
#include "tests/lab/figures/lab.hpp"

namespace kvd::sim {

/// Policies at every value of one parameter.
struct Grid {
  std::string figure;
  std::string unit;    ///< unit of the workload: "A5000, LLaMA3-8B, balanced mix"
  std::string x_name;  ///< name in JSON
  std::string x_label;
  std::vector<std::string> policies;
  std::vector<double> xs;
  std::function<Trial(const std::string& policy, double x)> trial;
};

struct GridResult {
  Grid grid;
  std::vector<std::vector<Summary>> rows;  ///< [x][policy]

  /// Precondition: both belong to the grid.
  [[nodiscard]] const Summary& at(const std::string& policy, double x) const;
  [[nodiscard]] double mean(const std::string& policy, double x, double Metrics::*figure) const {
    return at(policy, x).mean.*figure;
  }
  [[nodiscard]] double last_x() const { return grid.xs.back(); }
};

/// Errors: as Lab::measure().
[[nodiscard]] Result<GridResult> measure_grid(Lab& lab, const Grid& grid);

/// One figure over x, with a series for each policy and the spread over seeds.
struct Shown {
  std::string id;
  std::string title;
  std::string y_label;
  double Metrics::*figure;
  double scale = 1;  ///< 1e3 to show seconds as milliseconds
  bool log_y = false;
};
[[nodiscard]] Chart chart_of(const GridResult& result, const Shown& shown);
/// The same at one x, with a bar for each policy.
[[nodiscard]] Chart bars_of(const GridResult& result, double x, const Shown& shown);

/// {"figure", "unit", "policies" at the last x, "points": [{x_name, "policies"}]}.
[[nodiscard]] nlohmann::ordered_json json_of(const GridResult& result);

}  // namespace kvd::sim
