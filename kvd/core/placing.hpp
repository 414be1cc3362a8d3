#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/events.hpp"
#include "kvd/core/knowledge.hpp"
#include "kvd/core/session.hpp"
#include "kvd/core/tuning.hpp"
#include "planner/policy/rotation.hpp"

namespace kvd::core {

/// What a request waited for that is over.
struct Interval {
  enum class To : std::uint8_t { kRun, kFirst, kNext };  ///< its first iteration, or a token
  To to = To::kRun;
  Nanoseconds took{0};
  Nanoseconds goal{0};         ///< of a token
  std::uint8_t slo_class = 0;  ///< place in Totals::services
  bool counted = false;        ///< the goal had passed before, which was counted then
  std::uint64_t times = 1;     ///< so many alike
};

/// What is known, from one call to the next, of an engine that places its blocks itself: the engine
/// tells where each request is, this follows what became of it. Nothing that was decided is kept:
/// who is told to leave and does not simply still runs. The clock that counts is the engine's: its
/// ages are what it says, and what was noted before moves along with its arrivals, so that an
/// engine that stood still, or whose clock is another one, finds its deposits as they were.
///
/// Source: kvd design; deposits as TokenDeposit, lateness and pace as UnifiedPolicy asks for them.
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
    Slo goal;
    Nanoseconds own_gap{0};      ///< 0: its class's
    std::uint8_t slo_class = 0;  ///< place in Totals::services
    bool ran = false;            ///< now or before
    bool let_in = false;         ///< by the answer: it runs, though nobody may say so for long
    bool late = false;           ///< the goal of its next token has passed, which is counted
    TimePoint last_token{0};     ///< valid once it has generated some
    WaitReason waits_for = WaitReason::kNone;

    /// When its next token is late; none: it owes none.
    [[nodiscard]] std::optional<TimePoint> goal_passes() const;
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
  /// Takes in a call whose ids differ. `goals` and `classes` (places in Totals::services; none:
  /// the first): of each of its requests.
  void learn(const Schedule& told, std::span<const Slo> goals, TimePoint now, Costs& costs,
             std::span<const std::uint8_t> classes = {});
  /// What was waited for until the call that was learned last.
  [[nodiscard]] const std::vector<Interval>& over() const { return over_; }
  /// Whether what the last call said may still be so: an engine for which nobody waits has nothing
  /// to ask.
  [[nodiscard]] bool is_news(TimePoint now) const { return now - last_call_ <= kNews; }
  /// Visits those out of memory whose goals have passed since, each once until its next token.
  template <class F>
  void each_late(TimePoint now, F visit);
  /// How a policy sees each request of the call that was learned last, in its order.
  [[nodiscard]] planner::RotationRequest as_rotation(const Schedule& told, std::size_t request,
                                                     const Slo& goal, const Costs& costs) const;
  /// The longest gap that a request of the last call names; 0: none.
  [[nodiscard]] Nanoseconds own_gap(RequestId request) const;
  /// Passes over a request that the last call did not name.
  void set_gap(RequestId request, Nanoseconds gap);
  /// Somebody was not taken; it counts for `skips` under contention.
  void passed_over(std::size_t request) { ++known_[place_[request]].skips; }
  /// Why a request of the call stays out; kStep: it comes in.
  void explain(std::size_t request, WaitReason reason) {
    Known& known = known_[place_[request]];
    known.let_in = reason == WaitReason::kStep;
    known.waits_for = known.let_in ? WaitReason::kNone : reason;
  }
  /// Whether somebody will have waited until the next call: tokens of that time show the pace.
  void leave_waiting(bool waiting) { waited_ = waiting; }

  [[nodiscard]] const std::vector<Known>& all() const { return known_; }
  [[nodiscard]] const Counts& counts() const { return counts_; }
  [[nodiscard]] const Totals& totals() const { return totals_; }
  [[nodiscard]] TimePoint last_call() const { return last_call_; }

 private:
  static constexpr Nanoseconds kNews = std::chrono::seconds(1);  // kvd design

  [[nodiscard]] std::size_t find(RequestId request) const;
  [[nodiscard]] Known follow(const Schedule::Request& told, const Known* before, const Slo& goal,
                             TimePoint now, Costs& costs);
  void end_waits(const Schedule::Request& told, const Known* before, Known& known, TimePoint now);
  void gone(const Known& known, TimePoint now, const Costs& costs);

  std::vector<std::uint32_t> order_;   ///< of the call's requests, by id
  std::vector<std::uint32_t> place_;   ///< of each, in known_
  std::vector<Known> known_, before_;  ///< by id; as of the last call, and of the one before
  std::vector<Interval> over_;
  bool waited_ = false;
  Counts counts_;
  Totals totals_;
  TimePoint last_call_{0};
  Nanoseconds drift_{0};  ///< of the engine's clock behind ours since the last call
};

template <class F>
void Placing::each_late(TimePoint now, F visit) {
  if (!is_news(now)) return;
  for (Known& known : known_) {
    if (known.late || known.let_in || known.state == Schedule::State::kRunning) continue;
    const std::optional<TimePoint> passes = known.goal_passes();
    if (!passes || now <= *passes) continue;
    known.late = true;
    visit(known);
  }
}

}  // namespace kvd::core
