#include "kvd/core/placing.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvd::core {

namespace {

using planner::Seconds;
using State = Schedule::State;

constexpr double kMostDeposit = 1e9;

Seconds seconds(Nanoseconds time) { return Seconds(to_seconds(time)); }

/// When the next token is due of a request that was not seen before, as if its tokens had come
/// evenly.
Seconds due_of(const Schedule::Request& told, Seconds tbt, TimePoint now) {
  const Seconds first = seconds(told.first_token.value_or(now));
  const Seconds last = std::max(first, seconds(told.last_token.value_or(now)));
  const auto made = static_cast<double>(told.generated.value);
  const bool in_time = last - first <= tbt * std::max(0.0, made - 1);
  return in_time ? first + tbt * made : last + tbt;
}

/// After `made` more, the last of them `at`, of which all came after `since`: as if evenly.
Seconds due_after(Seconds due, double made, Seconds since, Seconds at, Seconds tbt) {
  const Seconds first = std::min(at, since + (at - since) / made);
  return std::max(std::max(due, first) + tbt * made, at + tbt);
}

}  // namespace

std::optional<RequestId> Placing::named_twice(const Schedule& told) {
  const auto& requests = told.requests;
  order_.resize(requests.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return requests[a].request < requests[b].request;
  });
  const auto same = std::adjacent_find(
      order_.begin(), order_.end(),
      [&](std::uint32_t a, std::uint32_t b) { return requests[a].request == requests[b].request; });
  return same == order_.end() ? std::nullopt : std::optional(requests[*same].request);
}

std::size_t Placing::find(RequestId request) const {
  const auto at = std::lower_bound(known_.begin(), known_.end(), request,
                                   [](const Known& known, RequestId id) { return known.id < id; });
  const bool found = at != known_.end() && at->id == request;
  return static_cast<std::size_t>((found ? at : known_.end()) - known_.begin());
}

Nanoseconds Placing::own_gap(RequestId request) const {
  const std::size_t at = find(request);
  return at < known_.size() ? known_[at].own_gap : Nanoseconds(0);
}

void Placing::set_gap(RequestId request, Nanoseconds gap) {
  const std::size_t at = find(request);
  if (at < known_.size()) known_[at].own_gap = gap;
}

std::optional<TimePoint> Placing::Known::goal_passes() const {
  if (generated == Tokens(0)) return arrived + std::min(goal.ttft, kLongestGoal);
  if (generated >= max_new) return std::nullopt;
  return last_token + std::min(goal.tbt, kLongestGoal);
}

void Placing::learn(const Schedule& told, std::span<const Slo> goals, TimePoint now, Costs& costs,
                    std::span<const std::uint8_t> classes) {
  Knowledge::measure_step(costs, told);
  std::swap(known_, before_);
  known_.clear();
  place_.resize(told.requests.size());
  over_.clear();
  counts_ = {};
  drift_ = Nanoseconds(0);
  std::int64_t tokens = 0;
  auto before = before_.begin();
  const auto end_before = [&](RequestId id) {
    for (; before != before_.end() && before->id < id; ++before) {
      gone(*before, now, costs);
      // One that ran and is not named any more has its answer.
      if (before->state == State::kRunning && before->generated > Tokens(0)) {
        costs.lengths.ended(before->generated);
      }
    }
  };
  for (const std::uint32_t i : order_) {
    const Schedule::Request& request = told.requests[i];
    end_before(request.request);
    const bool seen = before != before_.end() && before->id == request.request;
    const Known* last = seen ? &*before++ : nullptr;
    place_[i] = static_cast<std::uint32_t>(known_.size());
    known_.push_back(follow(request, last, goals[i], now, costs));
    if (!classes.empty()) known_.back().slo_class = classes[i];
    end_waits(request, last, known_.back(), now);
    if (last) tokens += std::max<std::int64_t>(0, (request.generated - last->generated).value);
    if (last && last->state != State::kRunning && request.state == State::kRunning &&
        last->generated == Tokens(0)) {
      costs.prompts.add(static_cast<double>(request.prompt.value));
    }
    counts_.waiting += request.state == State::kWaiting;
    counts_.running += request.state == State::kRunning;
    counts_.parked += request.state == State::kParked;
  }
  end_before(RequestId(UINT64_MAX));
  // Only while somebody waits: else it would be the pace at which requests arrive.
  if (waited_) Knowledge::measure_pace(costs, tokens, to_seconds(now - drift_ - last_call_));
  if (!waited_) costs.window = {};
  costs.most_running = std::max<std::int64_t>(costs.most_running, counts_.running);
  totals_.tokens += static_cast<std::uint64_t>(tokens);
  ++totals_.calls;
  last_call_ = now;
}

Placing::Known Placing::follow(const Schedule::Request& told, const Known* before, const Slo& goal,
                               TimePoint now, Costs& costs) {
  Known known;
  known.id = told.request;
  known.state = told.state;
  known.generated = told.generated;
  known.prompt = told.prompt;
  known.computed = told.computed;
  known.max_new = told.max_new;
  known.arrived = told.arrived;
  known.goal = goal;
  known.in_since = now;
  const Seconds tbt = seconds(goal.tbt);
  const bool runs = told.state == State::kRunning;
  if (!before) {
    if (told.generated > Tokens(0)) known.due = due_of(told, tbt, now);
    known.fresh = runs && told.generated == Tokens(0);
    return known;
  }
  const bool ran = before->state == State::kRunning;
  known.own_gap = before->own_gap;
  drift_ = told.arrived - before->arrived;
  if (before->due) known.due = *before->due + seconds(drift_);
  if (told.generated > before->generated) {
    const auto made = static_cast<double>((told.generated - before->generated).value);
    const Seconds at = seconds(std::min(now, told.last_token.value_or(now)));
    known.due = known.due ? due_after(*known.due, made, seconds(last_call_ + drift_), at, tbt)
                          : due_of(told, tbt, now);
  }
  known.in_since = ran ? before->in_since + drift_ : now;
  known.fresh = runs && (!ran || before->fresh) && told.generated <= before->generated;
  known.skips = runs ? 0 : before->skips;
  totals_.left += ran && !runs;
  known.times_left = before->times_left + (ran && !runs ? 1 : 0);
  if (runs && before->state == State::kParked) {
    ++totals_.returned;
    if (before->due) {
      const Seconds due = *before->due + seconds(drift_);
      costs.lateness.add(std::max(0.0, (seconds(now) - due).count()));
    }
  }
  return known;
}

// Tokens that came before it was known first are nobody's news.
void Placing::end_waits(const Schedule::Request& told, const Known* before, Known& known,
                        TimePoint now) {
  const auto add = [&](Interval::To to, Nanoseconds took, Nanoseconds goal, std::int64_t times) {
    over_.push_back({to, std::max(Nanoseconds(0), took), goal, known.slo_class,
                     before != nullptr && before->late, static_cast<std::uint64_t>(times)});
  };
  const bool runs = told.state == State::kRunning;
  const bool enters = before == nullptr ? told.generated == Tokens(0) : !before->ran;
  known.ran = runs || told.generated > Tokens(0) || (before != nullptr && before->ran);
  if (runs && enters) {  // one that waited was let in by the answer to the last call
    const TimePoint since = before == nullptr ? now : last_call_ + drift_;
    add(Interval::To::kRun, since - known.arrived, {}, 1);
  }
  known.last_token = std::min(now, told.last_token.value_or(now));
  if (before == nullptr) return;
  const std::int64_t made = (told.generated - before->generated).value;
  const TimePoint last = before->last_token + drift_;
  if (made <= 0) {
    known.late = before->late;
    if (!told.last_token) known.last_token = last;
  } else if (before->generated == Tokens(0)) {
    const TimePoint first = std::min(now, told.first_token.value_or(known.last_token));
    add(Interval::To::kFirst, first - known.arrived, known.goal.ttft, 1);
  } else if (before->late) {
    add(Interval::To::kNext, known.last_token - last, known.goal.tbt, 1);
  } else {  // as if evenly
    add(Interval::To::kNext, (known.last_token - last) / made, known.goal.tbt, made);
  }
}

// Nobody tells when one that is not named again had its first token: once its prompt was computed,
// after it came in.
void Placing::gone(const Known& known, TimePoint now, const Costs& costs) {
  if (known.generated > Tokens(0)) return;
  const bool runs = known.state == State::kRunning;
  const TimePoint in = runs ? known.in_since : known.let_in ? last_call_ : now;
  const Nanoseconds waited = std::max(Nanoseconds(0), in - known.arrived);
  if (!known.ran) over_.push_back({Interval::To::kRun, waited, {}, known.slo_class});
  if (!runs && !known.let_in) return;
  const auto left = static_cast<double>((known.prompt - known.computed).value);
  const double computes_s = std::clamp(costs.prefill_token_s * left, 0.0, Knowledge::kLongestStep);
  const Nanoseconds prefill(static_cast<std::int64_t>(computes_s * 1e9));
  over_.push_back(
      {Interval::To::kFirst, waited + prefill, known.goal.ttft, known.slo_class, known.late});
}

planner::RotationRequest Placing::as_rotation(const Schedule& told, std::size_t request,
                                              const Slo& goal, const Costs& costs) const {
  const Schedule::Request& from = told.requests[request];
  const Known& known = known_[place_[request]];
  const Tokens all = from.prompt + from.generated;
  planner::RotationRequest entry;
  entry.t_arr = from.arrived;
  entry.skips = known.skips;
  entry.ttft_slo = goal.ttft;
  entry.tbt_slo = goal.tbt;
  entry.tokens_made = from.generated;
  entry.gap = seconds(goal.longest_gap());
  const Tokens to_compute = std::max(Tokens(0), all - from.computed);
  entry.prefill = Seconds(costs.prefill_token_s * static_cast<double>(to_compute.value));
  if (known.due) {
    const Seconds left = *known.due - seconds(last_call_);
    const double intervals = std::clamp(std::ceil(left / entry.tbt_slo), 1.0, kMostDeposit);
    entry.deposit = static_cast<std::int64_t>(intervals) - 1;
  }
  if (from.state == State::kRunning) {
    entry.state = planner::RequestState::kRunning;
    entry.t_run = known.in_since;
    entry.stays = from.stays;
    if (from.generated > Tokens(0)) entry.t_last = from.last_token.value_or(last_call_);
    entry.prefilling = from.generated == Tokens(0) || from.computed + Tokens(1) < all;
    entry.made_token = !known.fresh;
  } else if (from.generated > Tokens(0)) {
    entry.state = planner::RequestState::kRotary;
    entry.t_last = from.last_token.value_or(last_call_);
  } else {
    entry.state = from.state == State::kParked ? planner::RequestState::kRotary
                                               : planner::RequestState::kWaiting;
  }
  entry.output_tokens = Knowledge::expected_length(costs, from.generated, from.max_new).median;
  return entry;
}

}  // namespace kvd::core
