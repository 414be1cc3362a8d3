#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/lab/grid/play.hpp"

namespace kvd::sim::grid {

/// A policy in one cell beside the best of the others, by joint attainment.
struct Standing {
  const Cell* cell = nullptr;
  double j = 0;
  double best = 0;
  std::string best_policy;
  double tokens = 0;  ///< tokens a second, relative to fcfs's
  /// P99 of TTFT relative to the best other's, over all requests and over the tenth with the
  /// longest prompts; 1 where no request has a first token.
  double first_tokens = 1;
  double long_first_tokens = 1;
  /// Every policy has the same joint attainment, to the digit, so the cell tells nothing about
  /// them.
  bool alike = false;
  /// Figures that show why, ours and the best other's; or a fault where ours failed.
  nlohmann::ordered_json cause;

  [[nodiscard]] double lead() const { return j - best; }
};

/// What the policy is worth on the cells.
struct Verdict {
  std::vector<Standing> cells;   ///< in the grid's order
  std::vector<Standing> behind;  ///< by more than the tolerance, the farthest first
  std::vector<Standing> alike;   ///< where all policies are alike, in the grid's order
  std::vector<Standing> slow;    ///< fewer than kLeastTokens of fcfs's tokens a second
  std::vector<Standing> late;    ///< at or below the knee: first tokens above kMostLate
  double mean_lead = 0;          ///< over cells from 0.9 to 1.5 times the knee
  double worst = 0;              ///< how far behind it is at its worst; below 0: nowhere
};

inline constexpr double kLeastTokens = 0.97;
inline constexpr double kMostLate = 1.25;  ///< as a multiple of the best other's P99

/// Figures that show why a policy is behind, each as [ours, the other's]; without those that both
/// lack.
[[nodiscard]] nlohmann::ordered_json cause_of(const Metrics& ours, const Metrics& other);

/// Precondition: `played` has the policy and at least one other in every cell.
[[nodiscard]] Standing standing_of(const Cell& cell, const PlayedCell& played,
                                   const std::string& policy);
[[nodiscard]] Verdict verdict_of(std::vector<Standing> cells, double tolerance);

/// {"cells", "behind": [{"cell", "j", "best", "best_policy", "cause"}], "alike": [cell],
/// "slow": [cell], "late": [cell], "mean_lead", "worst"}.
[[nodiscard]] nlohmann::ordered_json json_of(const Verdict& verdict);

}  // namespace kvd::sim::grid
