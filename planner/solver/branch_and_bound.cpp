#include "planner/solver/branch_and_bound.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace kvd::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kRootRounds = 60;
constexpr int kNodeRounds = 4;
constexpr std::size_t kMostCuts = 120;
// Cuts of the uniform plans, which save the root some rounds.
constexpr std::size_t kUniformCuts = 16;
// A cut whose relative violation is smaller is not worth a row.
constexpr double kCutWorth = 2e-4;
constexpr std::int64_t kRoundEvery = 4;
constexpr std::int64_t kKickEvery = 6;

std::size_t enumerated(std::size_t patterns) {
  if (patterns <= 17) return 3;
  return patterns <= 70 ? 2 : 1;
}

}  // namespace

BranchAndBound::BranchAndBound(const PlacementProblem& problem, const SolveLimits& limits,
                               const Clock& clock)
    : limits_(limits),
      budget_(limits, clock, problem.model.layers()),
      space_(problem),
      first_(problem.start),
      search_(space_, budget_),
      lp_(std::max(1.0, space_.total()), space_.capacity(), space_.compute(),
          space_.relaxed_memory(), limits.time),
      leaf_(enumerated(space_.patterns())),
      pruned_(kInfinity) {}

bool BranchAndBound::worse(const Node& a, const Node& b) {
  return a.bound != b.bound ? a.bound > b.bound : a.id < b.id;
}

PlacementSolution BranchAndBound::run() {
  if (!space_.may_fit(space_.empty_plan().load, 0, 0)) {
    proved_infeasible_ = true;
    return solution();
  }
  start();
  while (!queue_.empty() && !budget_.spent()) {
    std::pop_heap(queue_.begin(), queue_.end(), worse);
    const Node node = std::move(queue_.back());
    queue_.pop_back();
    budget_.count_node();
    expand(node);
  }
  proved_infeasible_ = !best_ && queue_.empty() && !budget_.spent();
  return solution();
}

// Computes the root's bound and the first plans: each candidate for all, the present one, and the
// rounded LP.
void BranchAndBound::start() {
  const Plan nothing = space_.empty_plan();
  if (!first_.empty()) {
    Plan given = space_.empty_plan();
    for (std::size_t r = 0; r < space_.requests(); ++r) {
      space_.assign(given, r, first_[space_.input_index(r)]);
    }
    if (space_.fits(given.load, given.open)) offer(std::move(given));
  }
  // Goes from the last, which offloads everything and fits if anything does.
  for (std::size_t k = space_.patterns(); k-- > 0 && !(best_ && budget_.spent());) {
    auto plan = uniform_plan(k);
    if (!plan) continue;
    offer(std::move(*plan));
    if (lp_.cuts() < kUniformCuts) add_cut();
  }
  if (space_.has_current()) {
    Plan now = space_.empty_plan();
    for (std::size_t r = 0; r < space_.requests(); ++r) {
      space_.assign(now, r, space_.current(r) < space_.patterns() ? space_.current(r) : 0);
    }
    if (space_.fits(now.load, now.open)) improve_and_offer(std::move(now));
  }
  tighten(nothing, kRootRounds);
  if (auto plan = rounded(nothing)) improve_and_offer(std::move(*plan));
  if (best_) improve_and_offer(*best_);
  const double bound = std::max(space_.compute(), bound_of({}));
  if (!hopeless(bound, nothing, 0)) queue_.push_back({bound, next_id_++, {}});
}

void BranchAndBound::offer(Plan plan) {
  cut_ = search_.evaluate(plan);
  if (!best_ || better(plan.latency, plan.ties, *best_)) best_ = std::move(plan);
}

void BranchAndBound::improve_and_offer(Plan plan) {
  search_.evaluate(plan);
  search_.improve(plan);
  if (!best_ || better(plan.latency, plan.ties, *best_)) best_ = std::move(plan);
}

void BranchAndBound::expand(const Node& node) {
  const Plan partial = partial_plan(node.choice);
  const std::size_t depth = node.choice.size();
  if (hopeless(node.bound, partial, depth)) return;
  if (depth > 0) tighten(partial, kNodeRounds);
  const Node here{std::max(node.bound, bound_of(node.choice)), node.id, node.choice};
  if (hopeless(here.bound, partial, depth)) return;
  if (space_.requests() - depth <= leaf_) {
    finish(partial);
    if (budget_.spent()) pruned_ = std::min(pruned_, here.bound);
    return;
  }
  if (budget_.used() % kRoundEvery == 0) {
    if (auto plan = rounded(partial)) improve_and_offer(std::move(*plan));
  }
  if (budget_.used() % kKickEvery == 0) kick();
  branch(here, partial);
}

void BranchAndBound::branch(const Node& node, const Plan& partial) {
  const std::size_t request = node.choice.size();
  for (std::size_t k = 0; k < space_.patterns(); ++k) {
    if (symmetric(request, k, partial)) continue;
    Plan child = partial;
    space_.assign(child, request, k);
    if (!space_.may_fit(child.load, child.open, request + 1)) continue;
    const double bound = std::max(node.bound, bound_of(child.choice));
    if (hopeless(bound, child, request + 1)) continue;
    queue_.push_back({bound, next_id_++, std::move(child.choice)});
    std::push_heap(queue_.begin(), queue_.end(), worse);
  }
}

void BranchAndBound::finish(const Plan& partial) {
  Plan plan = partial;
  const std::size_t remaining = space_.requests() - partial.choice.size();
  for (std::size_t r = partial.choice.size(); r < space_.requests(); ++r) {
    space_.assign(plan, r, 0);
  }
  search_.complete(plan, remaining, best_);
}

// Chooses anew for three requests, then goes downhill: a way out of plans that no pair of moves
// improves.
void BranchAndBound::kick() {
  if (!best_) return;
  Plan plan = *best_;
  for (int i = 0; i < 3; ++i) {
    const auto request = static_cast<std::size_t>(random_() % space_.requests());
    space_.reassign(plan, request, static_cast<std::size_t>(random_() % space_.patterns()));
  }
  if (space_.fits(plan.load, plan.open)) improve_and_offer(std::move(plan));
}

// Solves the LP for a partial plan, adding the critical path at its answer until that path is
// known.
void BranchAndBound::tighten(const Plan& partial, int rounds) {
  for (int round = 0; round < rounds && !budget_.spent(); ++round) {
    const auto& at = lp_.cuts() == 0 ? partial.load : lp_.load();
    if (lp_.cuts() > 0 && !lp_.solve(partial.load)) break;
    const double latency = space_.latency(at, cut_);
    const double known = std::inner_product(
        cuts_.begin(), cuts_.end(), lp_.multipliers().cut.begin(), 0.0, std::plus<>(),
        [&](const PathCut& cut, double weight) {
          return weight * std::inner_product(at.begin(), at.end(), cut.slope.begin(), cut.constant);
        });
    if (lp_.cuts() > 0 && latency <= known * (1 + kCutWorth)) break;
    if (lp_.cuts() >= kMostCuts) break;
    search_.cuts().add(cut_);
    add_cut();
  }
  set_prices();
}

// Adds the last critical path to the LP.
void BranchAndBound::add_cut() {
  cuts_.push_back(cut_);
  lp_.add(cut_);
}

// Any weights make a valid bound, so prices are summed here rather than taken from GLPK.
void BranchAndBound::set_prices() {
  const auto& weights = lp_.multipliers();
  prices_.constant = 0;
  prices_.per_block.assign(space_.patterns(), 0.0);
  prices_.per_choice.assign(space_.patterns(), 0.0);
  for (std::size_t i = 0; i < weights.cut.size(); ++i) {
    prices_.constant += weights.cut[i] * cuts_[i].constant;
    for (std::size_t k = 0; k < space_.patterns(); ++k) {
      prices_.per_block[k] += weights.cut[i] * cuts_[i].slope[k];
    }
  }
  for (std::size_t m = 0; m < weights.memory.size(); ++m) {
    prices_.constant -= weights.memory[m] * space_.capacity();
    for (std::size_t k = 0; k < space_.patterns(); ++k) {
      prices_.per_block[k] += weights.memory[m] * space_.memory()[m].weight[k];
      prices_.per_choice[k] += weights.memory[m] * space_.open(k);
    }
  }
  prices_.rest.assign(space_.requests() + 1, 0.0);
  for (std::size_t r = space_.requests(); r-- > 0;) {
    double least = kInfinity;
    for (std::size_t k = 0; k < space_.patterns(); ++k) least = std::min(least, price(r, k));
    prices_.rest[r] = prices_.rest[r + 1] + least;
  }
}

double BranchAndBound::price(std::size_t request, std::size_t pattern) const {
  return space_.blocks(request) * prices_.per_block[pattern] + prices_.per_choice[pattern];
}

double BranchAndBound::bound_of(const std::vector<std::size_t>& choice) const {
  double bound = prices_.constant + prices_.rest[choice.size()];
  for (std::size_t r = 0; r < choice.size(); ++r) bound += price(r, choice[r]);
  // The sums have some hundred terms: rounding stays far below this.
  return bound - 1e-12 * std::abs(prices_.constant);
}

bool BranchAndBound::open_question() const {
  return limits_.goal && best_ && best_->latency > limits_.goal->count();
}

// Whether nothing below this bound is worth finding.
bool BranchAndBound::hopeless(double bound, const Plan& partial, std::size_t depth) {
  if (!best_) return false;
  if (bound > best_->latency + kTieSeconds) return true;
  if (open_question() && bound <= limits_.goal->count()) return false;
  if (limits_.tolerance > 0) {
    if (bound * (1 + limits_.tolerance) < best_->latency) return false;
    pruned_ = std::min(pruned_, bound);
    return true;
  }
  return bound >= best_->latency - kTieSeconds &&
         space_.least_fetched(partial.load, partial.open, depth) >
             static_cast<double>(best_->ties.fetched) + 0.5;
}

// Requests of one size are interchangeable, so only ascending patterns among them are looked at,
// unless it matters which of them changes.
bool BranchAndBound::symmetric(std::size_t request, std::size_t pattern,
                               const Plan& partial) const {
  return request > 0 && !space_.has_current() &&
         space_.blocks(request) == space_.blocks(request - 1) &&
         pattern < partial.choice[request - 1];
}

PlacementSolution BranchAndBound::solution() const {
  PlacementSolution result;
  result.nodes = budget_.used();
  result.proved = proved_infeasible_;
  if (!best_) return result;
  double bound = std::min(best_->latency, pruned_);
  for (const auto& node : queue_) bound = std::min(bound, node.bound);
  result.choice.resize(space_.requests());
  for (std::size_t r = 0; r < space_.requests(); ++r) {
    // Without blocks every pattern is the same; the plain one is shown.
    const bool plain =
        space_.blocks(r) == 0 && space_.streamed(0) == 0 && space_.current(r) == space_.patterns();
    result.choice[space_.input_index(r)] = plain ? 0 : best_->choice[r];
  }
  result.latency = Seconds(best_->latency);
  result.lower_bound = Seconds(bound);
  result.ties = best_->ties;
  result.proved = best_->latency <= bound * (1 + limits_.tolerance) + kTieSeconds;
  return result;
}

}  // namespace kvd::planner
