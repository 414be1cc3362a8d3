#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "ipc/vocabulary/units.hpp"

namespace kvd::planner {

/// How long an answer will be: the bounds that a client's own predictor gave (its bucket), or
/// quantiles.
struct LengthEstimate {
  /// Few answers are shorter: for LayerKV's allowance and past-future's head room.
  Tokens low;
  /// For the forecast of what will be released.
  Tokens median;
  /// Few answers are longer.
  Tokens high;
};

/// Learns output lengths from the answers that ended; each engine has a predictor of its own.
/// Source: kvd, in place of LayerKV's trained classifier. As in LightLLM's past-future scheduler, a
/// past length counts only if it is longer than what the request has already made.
/// Owner:  one thread. Memory: the last kWindow lengths, twice.
/// Cost: a query O(log kWindow).
class LengthPredictor {
 public:
  static constexpr std::size_t kWindow = 512;
  /// With fewer answers than this nothing is predicted.
  static constexpr std::size_t kLeast = 8;
  static constexpr double kLow = 0.1;
  static constexpr double kHigh = 0.9;

  /// An answer ended after this many tokens.
  void ended(Tokens output);

  /// Quantiles among the past answers longer than `made`, each at least made + 1 and at most
  /// `most`. Where none was longer: the next token for the low one, `most` for the others. Nothing
  /// until kLeast answers have ended. Precondition: made < most.
  [[nodiscard]] std::optional<LengthEstimate> estimate(Tokens made, Tokens most) const;

  /// One quantile among the past answers longer than `made`; nothing where none was longer, or too
  /// few were seen.
  [[nodiscard]] std::optional<Tokens> quantile(Tokens made, double q) const;

  [[nodiscard]] std::size_t samples() const { return sorted_.size(); }

 private:
  [[nodiscard]] std::vector<Tokens>::const_iterator longer_than(Tokens made) const;

  std::deque<Tokens> recent_;
  std::vector<Tokens> sorted_;
};

/// A client's bucket, [low, high]: both ends and the middle, moved up past what is made.
/// Precondition: made < most.
[[nodiscard]] LengthEstimate estimate_in_bucket(Tokens low, Tokens high, Tokens made, Tokens most);

/// What to take without a bucket and with too few answers: the most that it may be, and one token
/// for the low bound.
[[nodiscard]] LengthEstimate estimate_unknown(Tokens made, Tokens most);

}  // namespace kvd::planner
