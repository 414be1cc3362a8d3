#include "planner/policy/length_predictor.hpp"

#include <algorithm>
#include <cmath>

namespace kvd::planner {
namespace {

Tokens at_quantile(std::vector<Tokens>::const_iterator first,
                   std::vector<Tokens>::const_iterator last, double q) {
  const auto steps = static_cast<double>(last - first - 1);
  return *(first + std::lround(q * steps));
}

}  // namespace

// A std::upper_bound without a branch for each step: the direction is unpredictable, and a step of
// the control thread asks this for every request.
std::vector<Tokens>::const_iterator LengthPredictor::longer_than(Tokens made) const {
  auto first = sorted_.begin();
  for (auto left = std::ssize(sorted_); left > 0;) {
    const auto half = (left + 1) / 2;
    first += half * static_cast<std::ptrdiff_t>(first[half - 1] <= made);
    left -= half;
  }
  return first;
}

void LengthPredictor::ended(Tokens output) {
  if (recent_.size() == kWindow) {
    sorted_.erase(std::lower_bound(sorted_.begin(), sorted_.end(), recent_.front()));
    recent_.pop_front();
  }
  recent_.push_back(output);
  sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), output), output);
}

std::optional<LengthEstimate> LengthPredictor::estimate(Tokens made, Tokens most) const {
  if (sorted_.size() < kLeast) return std::nullopt;
  const auto longer = longer_than(made);
  if (longer == sorted_.end()) return estimate_unknown(made, most);
  const auto quantile = [&](double q) {
    return std::min(at_quantile(longer, sorted_.end(), q), most);
  };
  return LengthEstimate{quantile(kLow), quantile(0.5), quantile(kHigh)};
}

std::optional<Tokens> LengthPredictor::quantile(Tokens made, double q) const {
  if (sorted_.size() < kLeast || made >= sorted_.back()) return std::nullopt;
  return at_quantile(longer_than(made), sorted_.end(), q);
}

LengthEstimate estimate_in_bucket(Tokens low, Tokens high, Tokens made, Tokens most) {
  const auto bounded = [&](Tokens length) { return std::clamp(length, made + Tokens(1), most); };
  return {bounded(low), bounded(low + Tokens((high - low).value / 2)), bounded(high)};
}

LengthEstimate estimate_unknown(Tokens made, Tokens most) { return {made + Tokens(1), most, most}; }

}  // namespace kvd::planner
