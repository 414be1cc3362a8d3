#include <limits>

#include "planner/solver/branch_and_bound.hpp"

/// The plans that the search makes by other means than local search.
namespace kvd::planner {

Plan BranchAndBound::partial_plan(const std::vector<std::size_t>& choice) const {
  Plan plan = space_.empty_plan();
  for (std::size_t r = 0; r < choice.size(); ++r) space_.assign(plan, r, choice[r]);
  return plan;
}

// Each undecided request takes the pattern that lacks most of what the LP wants. Where that no
// longer fits, it takes the fitting one that streams the most layers.
std::optional<Plan> BranchAndBound::rounded(const Plan& partial) {
  Plan plan = partial;
  for (std::size_t r = partial.choice.size(); r < space_.requests(); ++r) {
    std::optional<std::size_t> chosen;
    double most = -std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < space_.patterns(); ++k) {
      const double lacking = lp_.load()[k] - plan.load[k];
      if (lacking <= most) continue;
      if (budget_.spent_lately()) return std::nullopt;
      plan.load[k] += space_.blocks(r);
      if (space_.may_fit(plan.load, plan.open + space_.open(k), r + 1)) {
        most = lacking;
        chosen = k;
      }
      plan.load[k] -= space_.blocks(r);
    }
    if (!chosen) return std::nullopt;
    space_.assign(plan, r, *chosen);
  }
  if (!space_.fits(plan.load, plan.open)) return std::nullopt;
  return plan;
}

std::optional<Plan> BranchAndBound::uniform_plan(std::size_t pattern) const {
  const auto plan = partial_plan(std::vector<std::size_t>(space_.requests(), pattern));
  if (!space_.fits(plan.load, plan.open)) return std::nullopt;
  return plan;
}

}  // namespace kvd::planner
