#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "planner/model/latency.hpp"

namespace kvd::planner {

/// sum weight[k] * load[k] <= capacity, in layer-blocks.
struct MemoryRow {
  std::vector<double> weight;
};

/// Weights on cuts and memory rows that make a bound: T >= sum cut[i] * cut_i(load) + sum memory[m]
/// * (row_m(load) - capacity) for every plan that fits. The cut weights sum to 1.
struct Multipliers {
  std::vector<double> cut;
  std::vector<double> memory;
};

/// The linear programme behind the search: least T over loads that sum to the batch, fit memory and
/// lie above the cuts found so far. GLPK lives in this class's source file and nowhere else; its
/// answers are taken as hints (multipliers, a fractional load) from which the search computes
/// bounds itself, so that no tolerance inside GLPK can make a bound wrong.
/// Source: kvd; MODEL.md "Placement search".
/// Owner:  one thread for life. GLPK's environment is freed when that thread ends.
class BoundLp {
 public:
  /// `total` = the sum of all loads, > 0; `seconds` = a typical T, for scaling. `longest` bounds
  /// one solution in wall time; without it the answers depend on the input alone.
  BoundLp(double total, double capacity, double seconds, std::span<const MemoryRow> memory,
          std::optional<Nanoseconds> longest);
  ~BoundLp();
  BoundLp(const BoundLp&) = delete;
  BoundLp& operator=(const BoundLp&) = delete;

  void add(const PathCut& cut);
  [[nodiscard]] std::size_t cuts() const { return cuts_; }

  /// Solves with load[k] >= fixed[k]. False when GLPK has no optimum (infeasible, or it failed):
  /// then the answer of the last success stands.
  [[nodiscard]] bool solve(std::span<const double> fixed);
  [[nodiscard]] const std::vector<double>& load() const { return load_; }
  [[nodiscard]] const Multipliers& multipliers() const { return multipliers_; }

 private:
  struct Prob;
  void build(double capacity, std::span<const MemoryRow> memory);
  void read_answer();

  std::size_t patterns_;
  std::size_t memory_rows_;
  double total_;
  double seconds_;
  std::optional<Nanoseconds> longest_;
  std::size_t cuts_ = 0;
  std::unique_ptr<Prob> prob_;
  std::vector<double> load_;
  Multipliers multipliers_;
};

}  // namespace kvd::planner
