#include "kvd/core/ledger/placing.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kvd/core/ledger/knowledge.hpp"

namespace kvd::core {

namespace {

using State = Schedule::State;

Location place_of(State state) {
  if (state == State::kRunning) return Location::kIn;
  return state == State::kParked ? Location::kParked : Location::kOut;
}

/// Blocks that come free when it leaves, or that it needs to come in. The count is bounded by the
/// blocks that exist, whatever the engine says, because it is multiplied. A request that would fit
/// nowhere else comes in when all are free.
std::int64_t blocks_of(const Schedule& told, const Schedule::Request& request) {
  std::int64_t blocks = request.blocks;
  if (request.state != State::kRunning) blocks = request.blocks_to_return;
  if (request.state != State::kRunning && blocks == 0) {
    const Tokens all = request.prompt + request.generated;
    blocks = pieces(std::max(all, request.computed + Tokens(1)), told.block_tokens);
  }
  return std::min(blocks, told.total_blocks);
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

std::span<PlacedRequest* const> Placing::learn(Session& session, const Schedule& told,
                                               std::span<const Goal> goals) {
  if (!session.placed) session.placed.emplace();
  PlacedRequests& placed = *session.placed;
  Costs& costs = session.costs;
  Knowledge::measure_step(costs, told);
  std::swap(placed.all, before_);
  placed.all.clear();
  placed.all.reserve(told.requests.size());
  placed.waiting = placed.running = placed.parked = 0;
  called_.resize(told.requests.size());
  last_call_ = std::exchange(placed.last_call, context_.now);
  drift_ = Nanoseconds(0);
  std::int64_t tokens = 0;
  auto before = before_.begin();
  const auto end_before = [&](RequestId id) {
    for (; before != before_.end() && before->key.request < id; ++before) gone(*before);
  };
  for (const std::uint32_t i : order_) {
    const Schedule::Request& request = told.requests[i];
    end_before(request.request);
    const bool seen = before != before_.end() && before->key.request == request.request;
    const PlacedRequest* last = seen ? &*before++ : nullptr;
    PlacedRequest& known = placed.all.emplace_back(follow(session, request, last, goals[i]));
    known.blocks = blocks_of(told, request);
    called_[i] = &known;
    end_waits(request, last, known);
    if (last) tokens += std::max<std::int64_t>(0, (known.answer() - last->answer()).value);
    if (last && !last->runs() && known.runs() && !last->times.has_token) {
      costs.prompts.add(static_cast<double>(request.prompt.value));
    }
    placed.waiting += known.waits();
    placed.running += known.runs();
    placed.parked += request.state == State::kParked;
  }
  end_before(RequestId(UINT64_MAX));
  // Counts only while a request waits: otherwise it would measure the pace at which requests
  // arrive.
  if (placed.waited) {
    Knowledge::measure_pace(costs, tokens, to_seconds(context_.now - drift_ - last_call_));
  } else {
    costs.window = {};
  }
  costs.most_running = std::max<std::int64_t>(costs.most_running, placed.running);
  session.totals.tokens += static_cast<std::uint64_t>(tokens);
  ++session.totals.steps;
  return called_;
}

PlacedRequest Placing::follow(Session& session, const Schedule::Request& told,
                              const PlacedRequest* before, const Goal& goal) {
  const TimePoint now = context_.now;
  PlacedRequest known;
  known.key = {session.id, told.request};
  known.session = &session;
  known.place = place_of(told.state);
  known.goal = goal;
  known.times.arrived = told.arrived;
  known.times.has_token = told.generated > Tokens(0);
  known.times.run_since = now;
  const Tokens all = told.prompt + told.generated;
  known.progress.planned = told.computed;
  known.progress.tokens = known.times.has_token ? all - Tokens(1) : told.computed;
  const bool decodes = known.times.has_token && known.to_compute() <= Tokens(1);
  known.phase = decodes ? Phase::kDecode : Phase::kPrompt;
  known.stays = known.runs() && told.stays;
  // A request that is new here counts as if its tokens had come evenly.
  const TimePoint first = told.first_token.value_or(now);
  const TimePoint last = told.last_token.value_or(now);
  if (!before) {
    if (known.times.has_token) Knowledge::pace(known, told.generated, first, std::max(first, last));
    known.fresh = known.runs() && !known.times.has_token;
    return known;
  }
  known.own_gap = before->own_gap;
  drift_ = told.arrived - before->times.arrived;
  const Tokens made = known.answer() - before->answer();
  if (before->times.due) known.times.due = *before->times.due + drift_;
  if (made > Tokens(0) && known.times.due) {
    const TimePoint at = std::min(now, last), since = last_call_ + drift_;
    Knowledge::pace(known, made, std::min(at, since + (at - since) / made.value), at);
  } else if (made > Tokens(0)) {
    Knowledge::pace(known, told.generated, first, std::max(first, last));
  }
  if (before->runs()) known.times.run_since = before->times.run_since + drift_;
  known.fresh = known.runs() && (!before->runs() || before->fresh) && made <= Tokens(0);
  known.order.skips = known.runs() ? 0 : before->order.skips;
  const bool left = before->runs() && !known.runs();
  session.totals.rotations_out += left;
  known.order.rotations = before->order.rotations + left;
  if (known.runs() && before->place == Location::kParked) {
    ++session.totals.rotations_in;
    if (before->times.due) {
      const TimePoint due = *before->times.due + drift_;
      session.costs.lateness.add(std::max(0.0, to_seconds(now - due)));
    }
  }
  return known;
}

// Tokens that came before the request was first known are not counted.
void Placing::end_waits(const Schedule::Request& told, const PlacedRequest* before,
                        PlacedRequest& known) {
  const TimePoint now = context_.now;
  const bool late = before != nullptr && before->times.late;
  const auto add = [&](Lateness::To to, Nanoseconds took, std::int64_t times = 1) {
    lateness_.over(known, to, std::max(Nanoseconds(0), took), late,
                   static_cast<std::uint64_t>(times));
  };
  Times& times = known.times;
  const bool enters = before == nullptr ? !times.has_token : !before->ran;
  known.ran = known.runs() || times.has_token || (before != nullptr && before->ran);
  if (known.runs() && enters) {  // the answer to the last call let it in while it waited
    add(Lateness::To::kRun, (before == nullptr ? now : last_call_ + drift_) - times.arrived);
  }
  times.last_token = std::min(now, told.last_token.value_or(now));
  times.first_token = std::min(now, told.first_token.value_or(times.last_token));
  if (before == nullptr) return;
  const std::int64_t made = (known.answer() - before->answer()).value;
  const TimePoint last = before->times.last_token + drift_;
  if (made <= 0) {
    times.late = late;
    if (!told.last_token) times.last_token = last;
  } else if (!before->times.has_token) {
    add(Lateness::To::kFirst, times.first_token - times.arrived);
  } else if (late) {
    add(Lateness::To::kNext, times.last_token - last);
  } else {  // as if the tokens came evenly
    add(Lateness::To::kNext, (times.last_token - last) / made, made);
  }
}

// Nobody tells when a request that is not named again had its first token: it is taken to have come
// once the prompt was computed, after it came in. A request that ran and had its first token has
// its answer.
void Placing::gone(const PlacedRequest& known) {
  Costs& costs = known.session->costs;
  if (known.times.has_token) {
    if (known.runs()) costs.lengths.ended(known.answer());
    return;
  }
  const TimePoint in = known.runs()   ? known.times.run_since
                       : known.let_in ? last_call_
                                      : context_.now;
  const Nanoseconds waited = std::max(Nanoseconds(0), in - known.times.arrived);
  if (!known.ran) lateness_.over(known, Lateness::To::kRun, waited);
  if (!known.runs() && !known.let_in) return;
  const auto left = static_cast<double>(known.to_compute().value);
  const double computes_s = std::min(costs.prefill_token_s * left, Knowledge::kLongestStep);
  const Nanoseconds prefill(static_cast<std::int64_t>(computes_s * 1e9));
  lateness_.over(known, Lateness::To::kFirst, waited + prefill, known.times.late);
}

}  // namespace kvd::core
