#include "planner/solver/local_search.hpp"

namespace kvd::planner {
namespace {

// Up to this many requests all pairs of moves are tried. Above it only exchanges are: with many
// requests single blocks count for little, and there are too many pairs.
constexpr std::size_t kPairsUpTo = 16;

}  // namespace

bool better(double latency, const TieBreak& ties, const Plan& than) {
  if (latency < than.latency - kTieSeconds) return true;
  return latency <= than.latency + kTieSeconds && ties < than.ties;
}

const PathCut& LocalSearch::evaluate(Plan& plan) {
  plan.latency = space_.latency(plan.load, cut_);
  cuts_.add(cut_);
  return cut_;
}

void LocalSearch::improve(Plan& plan) {
  cuts_.base(plan.load);
  bool improved = true;
  while (improved && !budget_.spent_lately()) {
    improved = one_move(plan);
    if (!improved) improved = space_.requests() <= kPairsUpTo ? two_moves(plan) : exchanges(plan);
  }
}

bool LocalSearch::one_move(Plan& plan) {
  bool improved = false;
  for (std::size_t r = 0; r < space_.requests(); ++r) {
    if (budget_.spent_lately()) return false;
    for (std::size_t k = 0; k < space_.patterns(); ++k) {
      if (k != plan.choice[r] && try_moves(plan, {r, k}, std::nullopt)) improved = true;
    }
  }
  return improved;
}

bool LocalSearch::two_moves(Plan& plan) {
  bool improved = false;
  for (std::size_t r = 0; r < space_.requests(); ++r) {
    if (budget_.spent_lately()) return false;
    for (std::size_t s = r + 1; s < space_.requests(); ++s) {
      for (std::size_t k = 0; k < space_.patterns(); ++k) {
        if (k != plan.choice[r] && move_with(plan, {r, k}, s)) improved = true;
      }
    }
  }
  return improved;
}

bool LocalSearch::move_with(Plan& plan, Move first, std::size_t second) {
  bool improved = false;
  for (std::size_t j = 0; j < space_.patterns(); ++j) {
    if (j != plan.choice[second] && try_moves(plan, first, Move{second, j})) improved = true;
  }
  return improved;
}

bool LocalSearch::exchanges(Plan& plan) {
  bool improved = false;
  for (std::size_t r = 0; r < space_.requests(); ++r) {
    if (budget_.spent_lately()) return false;
    for (std::size_t s = r + 1; s < space_.requests(); ++s) {
      const auto k = plan.choice[s];
      const auto j = plan.choice[r];
      if (k != j && try_moves(plan, {r, k}, Move{s, j})) improved = true;
    }
  }
  return improved;
}

TieBreak LocalSearch::ties_after(const Plan& plan, Move a, const std::optional<Move>& b) const {
  TieBreak ties = plan.ties;
  const auto change = [&](const Move& move) {
    const auto out = space_.ties_of(move.request, plan.choice[move.request]);
    const auto in = space_.ties_of(move.request, move.pattern);
    ties.fetched += in.fetched - out.fetched;
    ties.staging += in.staging - out.staging;
    ties.changes += in.changes - out.changes;
  };
  change(a);
  if (b) change(*b);
  return ties;
}

// Asked first, because it rejects most moves of a tight plan and costs least.
bool LocalSearch::too_large(const Plan& plan, Move a, const std::optional<Move>& b) const {
  double used = plan.used;
  const auto change = [&](const Move& move) {
    used += space_.use(move.request, move.pattern) -
            space_.use(move.request, plan.choice[move.request]);
  };
  change(a);
  if (b) change(*b);
  return used > space_.capacity() + 1e-6;
}

// Precondition: the cuts' base is the plan's load.
bool LocalSearch::ruled_out(const Plan& plan, Move a, const std::optional<Move>& b,
                            const TieBreak& ties, const Plan& best) {
  const double limit = ties < best.ties ? best.latency + kTieSeconds : best.latency - kTieSeconds;
  const CutPool::Shift first{plan.choice[a.request], a.pattern, space_.blocks(a.request)};
  if (!b) return cuts_.above(limit, first);
  return cuts_.above(limit, first,
                     {plan.choice[b->request], b->pattern, space_.blocks(b->request)});
}

bool LocalSearch::try_moves(Plan& plan, Move a, std::optional<Move> b) {
  if (too_large(plan, a, b)) return false;
  const TieBreak ties = ties_after(plan, a, b);
  if (ruled_out(plan, a, b, ties, plan)) return false;
  scratch_ = plan;
  space_.reassign(scratch_, a.request, a.pattern);
  if (b) space_.reassign(scratch_, b->request, b->pattern);
  if (!space_.fits(scratch_.load, scratch_.open) || budget_.spent_lately()) return false;
  evaluate(scratch_);
  const bool improves = better(scratch_.latency, ties, plan);
  if (improves) std::swap(plan, scratch_);
  cuts_.base(plan.load);
  return improves;
}

void LocalSearch::complete(Plan& plan, std::size_t remaining, std::optional<Plan>& best) {
  const std::size_t first = space_.requests() - remaining;
  if (remaining > 2) {
    for (std::size_t k = 0; k < space_.patterns() && !budget_.spent_lately(); ++k) {
      space_.reassign(plan, first, k);
      complete(plan, remaining - 1, best);
    }
    space_.reassign(plan, first, 0);
    return;
  }
  cuts_.base(plan.load);
  for (std::size_t k = 0; k < space_.patterns(); ++k) {
    if (remaining == 1) {
      try_completion(plan, {first, k}, std::nullopt, best);
      continue;
    }
    for (std::size_t j = 0; j < space_.patterns(); ++j) {
      try_completion(plan, {first, k}, Move{first + 1, j}, best);
    }
  }
}

void LocalSearch::try_completion(const Plan& plan, Move a, std::optional<Move> b,
                                 std::optional<Plan>& best) {
  if (too_large(plan, a, b)) return;
  const TieBreak ties = ties_after(plan, a, b);
  if (best && ruled_out(plan, a, b, ties, *best)) return;
  scratch_ = plan;
  space_.reassign(scratch_, a.request, a.pattern);
  if (b) space_.reassign(scratch_, b->request, b->pattern);
  if (!space_.fits(scratch_.load, scratch_.open) || budget_.spent_lately()) return;
  evaluate(scratch_);
  cuts_.base(plan.load);
  if (!best || better(scratch_.latency, ties, *best)) best = scratch_;
}

}  // namespace kvd::planner
