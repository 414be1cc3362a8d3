#pragma once

#include <optional>

#include "planner/solver/budget.hpp"
#include "planner/solver/cut_pool.hpp"
#include "planner/solver/placement_space.hpp"

namespace kvd::planner {

/// Lower latency, or an equal one with the better tie-break.
[[nodiscard]] bool better(double latency, const TieBreak& ties, const Plan& than);

/// Turns plans into better ones by giving one or two requests other candidates, until no such move
/// helps. Keeps the cuts it meets: a move that stays above one of them is never evaluated.
/// Owner: one thread.
class LocalSearch {
 public:
  LocalSearch(PlacementSpace& space, Budget& budget) : space_(space), budget_(budget) {}

  [[nodiscard]] CutPool& cuts() { return cuts_; }
  /// Fills in the plan's latency; the critical path it returns is valid until the next call.
  const PathCut& evaluate(Plan& plan);
  /// Precondition: evaluated.
  void improve(Plan& plan);
  /// Tries every completion of a plan whose last `remaining` requests stand at pattern 0. The best
  /// one that beats `best` replaces it.
  void complete(Plan& plan, std::size_t remaining, std::optional<Plan>& best);

 private:
  struct Move {
    std::size_t request;
    std::size_t pattern;
  };
  [[nodiscard]] bool one_move(Plan& plan);
  [[nodiscard]] bool two_moves(Plan& plan);
  [[nodiscard]] bool move_with(Plan& plan, Move first, std::size_t second);
  [[nodiscard]] bool exchanges(Plan& plan);
  [[nodiscard]] bool try_moves(Plan& plan, Move a, std::optional<Move> b);
  void try_completion(const Plan& plan, Move a, std::optional<Move> b, std::optional<Plan>& best);
  [[nodiscard]] TieBreak ties_after(const Plan& plan, Move a, const std::optional<Move>& b) const;
  [[nodiscard]] bool too_large(const Plan& plan, Move a, const std::optional<Move>& b) const;
  [[nodiscard]] bool ruled_out(const Plan& plan, Move a, const std::optional<Move>& b,
                               const TieBreak& ties, const Plan& best);

  PlacementSpace& space_;
  Budget& budget_;
  CutPool cuts_;
  PathCut cut_;
  Plan scratch_;
};

}  // namespace kvd::planner
