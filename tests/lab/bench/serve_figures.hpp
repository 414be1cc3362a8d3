#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/lab/bench/serve_run.hpp"

namespace kvd::bench {

struct Figure {
  const char* name;
  const char* unit;
  double value;
};

/// The value of the figure of that name. Precondition: there is one.
[[nodiscard]] double value_of(const std::vector<Figure>& figures, std::string_view name);

/// A run in figures: the same ones in the same order for every run.
/// As delivered: times at the client, behind the deposit. A token is late when it comes later after
/// the one before than the TBT goal and a tolerance: tokens that the deposit releases exactly at
/// the goal's pace are on time although a timer is never exact. A gap of several goals counts as
/// that many missed intervals, so that a long pause does not count as only one late token. Raw: as
/// the daemon stamped the tokens when they were made.
/// within_slo: complete requests that met both goals, the one for TTFT and the one for TBT on
/// average (TPOT).
/// control_share: CPU time of the daemon's control thread over the time that engines iterate, whose
/// mean is `iteration`; both from the same run, so that a slow machine stretches both.
[[nodiscard]] std::vector<Figure> figures_of(const ServeRun& run, const Goals& goals);

/// All runs of one policy.
struct PolicyRuns {
  std::string policy;
  std::vector<std::vector<Figure>> runs;  ///< one for each seed

  [[nodiscard]] std::vector<Figure> means() const;
};

/// Describes a run: stage, goals, every figure of every run.
[[nodiscard]] std::string serve_json(const ServeStage& stage, const Goals& goals,
                                     const std::vector<PolicyRuns>& policies);
/// Bars of the SLO attainments by policy, with the spread over the seeds.
[[nodiscard]] std::string serve_svg(const ServeStage& stage, const Goals& goals,
                                    const std::vector<PolicyRuns>& policies);

}  // namespace kvd::bench
