#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/lab/grid/play.hpp"

/// What a policy is worth to each class of goals: the tightest should fare as it would alone, and
/// the looser ones should not pay more for that than elsewhere.
namespace kvd::sim::grid {

inline constexpr double kFits = 0.9;        ///< share of the knee that the tightest class has alone
inline constexpr double kLooseLoss = 0.05;  ///< of joint attainment

/// A class beside the tightest one.
struct LooseClass {
  std::string name;
  double j = 0;  ///< joint attainment
  /// Joint attainment of the best other policy that keeps the tightest class, or of fcfs.
  double best = 0;
  std::string best_policy;  ///< empty: there is none to compare with
  [[nodiscard]] bool behind() const { return !best_policy.empty() && j < best - kLooseLoss; }
};

/// A policy in one cell, class by class.
struct ClassStanding {
  const Cell* cell = nullptr;
  /// The tightest class's rate, as a multiple of the knee that it has alone.
  double tight_load = 0;
  double tight_requests = 0;  ///< for each seed: with few of them one request is several points
  double alone = 0;           ///< joint attainment of the tightest class without the others
  double tight = 0;           ///< joint attainment of it beside them
  double tokens = 0;          ///< tokens a second, relative to fcfs's
  double longest_gap_s = 0;   ///< of the tightest class beside the others, as tokens are made
  double second_gaps = 0;     ///< its requests with a gap above a second
  bool tight_behind = false;  ///< by more than the tolerance
  bool slow = false;          ///< fewer tokens than kLeastTokens of fcfs's
  std::vector<LooseClass> loose;
  nlohmann::ordered_json
      cause;  ///< "tight", "slow", "loose: CLASS": figures that differ; or "fault"

  [[nodiscard]] bool fits() const { return tight_load <= kFits; }
  [[nodiscard]] bool loose_behind() const;
  [[nodiscard]] bool missed() const { return tight_behind || slow || loose_behind(); }
};

/// Precondition: the policy was played alone, too.
[[nodiscard]] ClassStanding class_standing_of(const Cell& cell, const PlayedCell& played,
                                              const std::string& policy, double tolerance);

/// How many of the cells in which the tightest class fits (or does not) miss something.
struct ClassCounts {
  std::size_t cells = 0, tight = 0, slow = 0, loose = 0, missed = 0;
};
[[nodiscard]] ClassCounts counts_of(const std::vector<ClassStanding>& cells, bool fits);

/// {"fits": {"cells", "tight", "slow", "loose", "missed"}, "others": {…}, "cells": [{"cell",
/// "setting", "tight_load", "fits", "tight_requests", "alone", "tight", "tokens",
/// "longest_raw_gap_s", "second_gap_share", "loose": [{"class", "j", "best", "best_policy"}],
/// "missed": ["tight", "slow", "loose"], "cause"}]}.
[[nodiscard]] nlohmann::ordered_json json_of(const std::vector<ClassStanding>& cells);

}  // namespace kvd::sim::grid
