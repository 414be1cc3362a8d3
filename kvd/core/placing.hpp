#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/events.hpp"
#include "kvd/core/tuning.hpp"
#include "planner/model/fitted_line.hpp"
#include "planner/policy/length_predictor.hpp"
#include "planner/policy/rotation.hpp"

namespace kvd::core {

/// The mean of the last few.
class RecentMean {
 public:
  void add(double value);
  [[nodiscard]] double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }

 private:
  std::array<double, 16> values_{};
  std::size_t count_ = 0, next_ = 0;
  double sum_ = 0;
};

/// What is known, from one call to the next, of an engine that places its blocks itself: the engine
/// tells where each request is, this follows what became of it. Nothing that was decided is kept:
/// who is told to leave and does not simply still runs. The clock that counts is the engine's: its
/// ages are what it says, and what was noted before moves along with its arrivals, so that an
/// engine that stood still, or whose clock is another one, finds its deposits as they were.
///
/// Source: kvd design; deposits as TokenDeposit, lateness and pace as PacedPolicy says.
///
/// Owner: control thread. Cost: O(n log n) in the requests of a call; allocates while they grow in
/// number.
class Placing {
 public:
  /// A request as of the last call.
  struct Known {
    RequestId id;
    Schedule::State state = Schedule::State::kWaiting;
    Tokens generated;
    Tokens prompt, computed, max_new;
    TimePoint arrived{0};
    std::uint32_t times_left = 0;         ///< times that it was preempted
    std::optional<planner::Seconds> due;  ///< its next token, to the user; none before the first
    TimePoint in_since{0};                ///< valid while it runs
    bool fresh = false;                   ///< came in, and has made no token since
    std::int32_t skips = 0;               ///< calls under contention in which it was not taken
  };
  struct Counts {
    std::uint32_t waiting = 0, running = 0, parked = 0;
  };
  /// Since the engine attached.
  struct Totals {
    std::uint64_t calls = 0, left = 0, returned = 0, tokens = 0;
  };

  /// The id that the call names twice, before anything is learned from it.
  [[nodiscard]] std::optional<RequestId> named_twice(const Schedule& told);
  /// Takes in a call whose ids differ. `goals`: of each of its requests.
  void learn(const Schedule& told, std::span<const Slo> goals, TimePoint now);
  /// How a policy sees each request of the call that was learned last, in its order.
  [[nodiscard]] planner::RotationRequest as_rotation(const Schedule& told, std::size_t request,
                                                     const Slo& goal) const;
  /// With `running` requests.
  [[nodiscard]] planner::EnginePace pace(std::int64_t running) const;
  /// Somebody was not taken; it counts for `skips` under contention.
  void passed_over(std::size_t request) { ++known_[place_[request]].skips; }
  /// Whether somebody will have waited until the next call: tokens of that time show the pace.
  void leave_waiting(bool waiting) { waited_ = waiting; }

  [[nodiscard]] const std::vector<Known>& all() const { return known_; }
  [[nodiscard]] const planner::LengthPredictor& lengths() const { return lengths_; }
  [[nodiscard]] double prefill_token_s() const;
  /// An iteration that decodes so many, without prefill; 0: not known yet.
  [[nodiscard]] double decode_s(std::int64_t decodes) const;
  [[nodiscard]] const Counts& counts() const { return counts_; }
  [[nodiscard]] const Totals& totals() const { return totals_; }
  [[nodiscard]] TimePoint last_call() const { return last_call_; }

 private:
  [[nodiscard]] Known follow(const Schedule::Request& told, const Known* before, const Slo& goal,
                             TimePoint now);
  void measure_step(const Schedule& told);
  void measure_pace(std::int64_t tokens, TimePoint now);
  void count_passed(const Schedule& told);

  std::vector<std::uint32_t> order_;    ///< of the call's requests, by id
  std::vector<std::uint32_t> place_;    ///< of each, in known_
  std::vector<Known> known_, before_;   ///< by id; as of the last call, and of the one before
  std::vector<std::uint32_t> came_in_;  ///< of the call, prompts that have begun since the last one
  planner::FittedLine decode_{0.98};    ///< time of iterations without prefill, over their decodes
  planner::FittedLine prefill_{0.97};   ///< what prefill adds to one, over its prompt tokens
  planner::LengthPredictor lengths_;
  RecentMean lateness_;
  double tokens_per_s_ = 0;
  double window_s_ = 0;  ///< in which somebody waited, and the tokens made in it
  std::int64_t window_tokens_ = 0;
  bool waited_ = false;
  std::int32_t passed_ = 0;
  Counts counts_;
  Totals totals_;
  TimePoint last_call_{0};
  Nanoseconds drift_{0};  ///< of the engine's clock behind ours since the last call
};

}  // namespace kvd::core
