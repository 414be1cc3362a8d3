#pragma once

#include <random>

#include "planner/solver/local_search.hpp"

namespace kvd::planner {

/// One search for one problem (placement_solver.hpp says how it works).
/// Owner: one thread; made for one run.
class BranchAndBound {
 public:
  BranchAndBound(const PlacementProblem& problem, const SolveLimits& limits, const Clock& clock);
  [[nodiscard]] PlacementSolution run();

 private:
  // The first requests of the search order are decided.
  struct Node {
    double bound;
    std::uint64_t id;
    std::vector<std::size_t> choice;
  };
  static bool worse(const Node& a, const Node& b);

  // Multipliers turned into a bound that adds up over requests.
  struct Prices {
    double constant = 0;
    std::vector<double> per_block;   // by pattern
    std::vector<double> per_choice;  // by pattern: open blocks
    std::vector<double> rest;        // least price of all requests from an index on
  };

  void start();
  void offer(Plan plan);
  void improve_and_offer(Plan plan);
  void expand(const Node& node);
  void branch(const Node& node, const Plan& partial);
  void finish(const Plan& partial);
  void kick();

  [[nodiscard]] Plan partial_plan(const std::vector<std::size_t>& choice) const;
  void tighten(const Plan& partial, int rounds);
  void add_cut();
  void set_prices();
  [[nodiscard]] double price(std::size_t request, std::size_t pattern) const;
  [[nodiscard]] double bound_of(const std::vector<std::size_t>& choice) const;
  [[nodiscard]] std::optional<Plan> rounded(const Plan& partial);
  [[nodiscard]] std::optional<Plan> uniform_plan(std::size_t pattern) const;

  [[nodiscard]] bool hopeless(double bound, const Plan& partial, std::size_t depth);
  [[nodiscard]] bool symmetric(std::size_t request, std::size_t pattern, const Plan& partial) const;
  [[nodiscard]] bool open_question() const;
  [[nodiscard]] PlacementSolution solution() const;

  SolveLimits limits_;
  Budget budget_;  // comes first: laying out the problem uses some of it, too
  PlacementSpace space_;
  std::vector<std::size_t> first_;
  LocalSearch search_;
  BoundLp lp_;
  PathCut cut_;
  std::vector<PathCut> cuts_;  // the cuts in the LP
  Prices prices_;
  std::optional<Plan> best_;
  std::vector<Node> queue_;  // heap, least bound on top
  std::uint64_t next_id_ = 0;
  std::size_t leaf_;  // this many undecided requests are enumerated
  double pruned_;     // least bound among what the tolerance cut off
  bool proved_infeasible_ = false;
  std::mt19937_64 random_{1};
};

}  // namespace kvd::planner
