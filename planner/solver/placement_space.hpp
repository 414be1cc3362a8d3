#pragma once

#include <span>

#include "planner/solver/bound_lp.hpp"
#include "planner/solver/placement_problem.hpp"

namespace kvd::planner {

/// A complete choice with what the search compares. Requests are counted in search order.
struct Plan {
  std::vector<std::size_t> choice;
  std::vector<double> load;  // blocks per layer, by pattern
  double open = 0;           // open blocks kept
  double used = 0;           // slots used in the first memory row: all memory under strict staging
  double latency = 0;
  TieBreak ties;
};

/// The problem in the form the search works on: requests from the largest to the smallest, loads by
/// pattern, memory as linear rows.
/// Owner: one thread.
class PlacementSpace {
 public:
  explicit PlacementSpace(const PlacementProblem& problem);

  [[nodiscard]] std::size_t requests() const { return blocks_.size(); }
  [[nodiscard]] std::size_t patterns() const { return streamed_.size(); }
  [[nodiscard]] double blocks(std::size_t request) const { return blocks_[request]; }
  [[nodiscard]] double total() const { return total_; }
  [[nodiscard]] double capacity() const { return capacity_; }
  [[nodiscard]] double compute() const { return compute_; }
  [[nodiscard]] std::size_t input_index(std::size_t request) const { return order_[request]; }
  /// The request's present candidate; patterns() when it has none.
  [[nodiscard]] std::size_t current(std::size_t request) const { return current_[request]; }
  [[nodiscard]] bool has_current() const { return has_current_; }
  [[nodiscard]] double open(std::size_t pattern) const { return open_[pattern]; }
  [[nodiscard]] double streamed(std::size_t pattern) const { return streamed_[pattern]; }
  [[nodiscard]] std::span<const MemoryRow> memory() const { return memory_; }
  /// The memory rows with a share of the open blocks that never exceeds the truth.
  [[nodiscard]] std::vector<MemoryRow> relaxed_memory() const;

  [[nodiscard]] bool fits(std::span<const double> load, double open) const;
  /// What a request with this pattern takes of the first memory row.
  [[nodiscard]] double use(std::size_t request, std::size_t pattern) const {
    return blocks_[request] * memory_.front().weight[pattern] + open_[pattern];
  }
  /// Whether some completion of the first `depth` requests may fit. Exact under strict staging.
  [[nodiscard]] bool may_fit(std::span<const double> load, double open, std::size_t depth) const;
  /// The fewest blocks that any completion fetches.
  [[nodiscard]] double least_fetched(std::span<const double> load, double open,
                                     std::size_t depth) const;

  [[nodiscard]] TieBreak ties_of(std::size_t request, std::size_t pattern) const;
  [[nodiscard]] Plan empty_plan() const;
  void assign(Plan& plan, std::size_t request, std::size_t pattern) const;
  void reassign(Plan& plan, std::size_t request, std::size_t pattern) const;

  [[nodiscard]] double latency(std::span<const double> load) { return latency_.evaluate(load); }
  [[nodiscard]] double latency(std::span<const double> load, PathCut& cut) {
    return latency_.evaluate(load, total_, cut);
  }

 private:
  void build_memory(const PlacementProblem& problem);

  std::vector<std::size_t> order_;
  std::vector<double> blocks_;
  std::vector<std::size_t> current_;
  bool has_current_ = false;
  std::vector<double> streamed_;
  std::vector<double> open_;
  std::vector<MemoryRow> memory_;
  // By index: the least and the most memory that this request and all after it take.
  std::vector<double> least_memory_;
  std::vector<double> resident_memory_;
  double layers_;
  double total_ = 0;
  double capacity_;
  double compute_ = 0;
  PatternLatency latency_;
};

}  // namespace kvd::planner
