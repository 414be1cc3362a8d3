#include "planner/policy/paced.hpp"

#include <algorithm>

#include "planner/policy/gates.hpp"

namespace kvd::planner {
namespace {

/// Behind every deadline there is.
constexpr double kHopeless = 1e12;

bool sooner(const Ranked& a, const Ranked& b) {
  return a.vlt != b.vlt ? a.vlt < b.vlt : earlier(a, b);
}

/// By when it has to make its next token for its tokens to come at S_B. Where only the longest gap
/// is seen it is their mean that counts, and what is left of the answer, a token a step, makes up
/// for a wait: half of what is expected, as half of the answers end sooner.
Seconds lasts(const RotationSnapshot& snapshot, const RotationRequest& request, Seconds now) {
  const Seconds due = request.t_due.value_or(now);
  if (!request.gap) return due;
  const Tokens left = request.output_tokens.value_or(request.tokens_made) - request.tokens_made;
  const double sure = static_cast<double>(std::max(Tokens(0), left).value) / 2;
  return due + sure * std::max(Seconds(0), request.tbt_slo - snapshot.pace.step);
}

/// By when it has to come in so that no gap is too long.
Seconds back_by(const RotationRequest& request, Seconds now) {
  if (!request.gap) return Seconds(kHopeless);
  return request.t_last.value_or(now) + (1 - PacedPolicy::kReturn) * *request.gap;
}

/// Until its user would notice that it is out; negative: it is late.
Seconds slack(const RotationSnapshot& snapshot, const RotationRequest& request, Seconds now) {
  return std::min(lasts(snapshot, request, now), back_by(request, now)) - now;
}

bool is_near(const RotationSnapshot& snapshot, Seconds slack) {
  return slack < PacedPolicy::kNear * snapshot.pace.step;
}

bool is_dry(const RotationSnapshot& snapshot, const RotationRequest& request, Seconds now) {
  return is_near(snapshot, slack(snapshot, request, now));
}

/// It has begun, is out, and its gap is about to be too long.
bool stands_still(const RotationSnapshot& snapshot, const RotationRequest& request, Seconds now) {
  return !request.counts_as_waiting() && is_near(snapshot, back_by(request, now) - now);
}

bool is_hopeless(const RotationSnapshot& snapshot, const RotationRequest& request, Seconds now) {
  const EnginePace& pace = snapshot.pace;
  const Seconds left =
      pace.step + static_cast<double>(request.to_compute.value) * pace.prefill_token;
  return now - request.t_arr.value_or(now) + left > request.ttft_slo;
}

/// Somebody may leave for it.
bool is_needy(const RotationSnapshot& snapshot, const RotationRequest& request, Seconds now,
              const RotationConfig& config) {
  if (!request.counts_as_waiting()) return is_dry(snapshot, request, now);
  const Seconds waited = now - request.t_arr.value_or(now);
  if (config.overload == Overload::kGoodput && is_hopeless(snapshot, request, now)) return false;
  return waited >= config.beta_f * request.ttft_slo;
}

}  // namespace

const RotationDecision& PacedPolicy::decide(const RotationSnapshot& snapshot, Seconds now,
                                            const RotationConfig& config) {
  begin_decision(decision_, snapshot, now, config);
  sort(snapshot, now, config);
  const Bytes room = plannable(snapshot, config);
  decision_.contention = wanted_ > room;
  serve(snapshot, let_grow(snapshot, room), now, config);
  return decision_;
}

void PacedPolicy::sort(const RotationSnapshot& snapshot, Seconds now,
                       const RotationConfig& config) {
  for (auto* list : {&dry_, &prompts_, &patient_, &leaving_}) list->clear();
  left_ = running_ = 0;
  rate_ = 0;
  parked_ = false;
  wanted_ = moved_ = here_ = out_ = Bytes{0};
  const DramUse* dram = dram_gates(snapshot, config);
  for (std::uint32_t i = 0; i < snapshot.requests.size(); ++i) {
    const auto& request = snapshot.requests[i];
    const bool runs = request.state == RequestState::kRunning;
    if (runs || !request.counts_as_waiting()) rate_ += 1 / request.tbt_slo.count();
    if (runs) {
      ++running_;
      here_ += request.bytes;
      if (may_leave(request, config)) {
        leaving_.push_back(
            {(now - lasts(snapshot, request, now)).count(), fcfs_key(request).count(), i});
      }
    } else if (may_enter(request, dram)) {
      wanted_ += request.bytes;
      sort_entering(request, i, snapshot, now, config);
    }
  }
  std::sort(leaving_.begin(), leaving_.end(), sooner);
  for (auto* list : {&dry_, &prompts_, &patient_}) std::sort(list->begin(), list->end(), sooner);
  put_aged_first(snapshot);
}

void PacedPolicy::sort_entering(const RotationRequest& request, std::uint32_t index,
                                const RotationSnapshot& snapshot, Seconds now,
                                const RotationConfig& config) {
  const double arrived = fcfs_key(request).count();
  if (!request.counts_as_waiting()) {
    parked_ = true;
    out_ += request.bytes;
    auto& list = is_dry(snapshot, request, now) ? dry_ : patient_;
    list.push_back({slack(snapshot, request, now).count(), arrived, index});
    return;
  }
  const bool last = config.overload == Overload::kGoodput && is_hopeless(snapshot, request, now);
  const double deadline = arrived + request.ttft_slo.count();
  prompts_.push_back({last ? kHopeless : deadline, arrived, index});
}

void PacedPolicy::put_aged_first(const RotationSnapshot& snapshot) {
  if (prompts_.empty() || snapshot.pace.passed < kSkipLimit) return;
  const auto first = std::min_element(prompts_.begin(), prompts_.end(), earlier);
  std::rotate(prompts_.begin(), first, first + 1);
}

Bytes PacedPolicy::let_grow(const RotationSnapshot& snapshot, Bytes room) {
  // The last one grows into what all others left.
  while (room < Bytes{0} && left_ < leaving_.size() && left_ + 1 < running_) {
    const std::uint32_t victim = leaving_[left_++].index;
    room += snapshot.requests[victim].bytes;
    decision_.preempted.push_back(victim);
  }
  return room;
}

void PacedPolicy::serve(const RotationSnapshot& snapshot, Bytes room, Seconds now,
                        const RotationConfig& config) {
  for (const auto* list : {&dry_, &prompts_, &patient_}) {
    for (const Ranked& ranked : *list) {
      const auto& request = snapshot.requests[ranked.index];
      const bool starts = request.counts_as_waiting();
      const bool aged =
          list == &prompts_ && &ranked == list->data() && snapshot.pace.passed >= kSkipLimit;
      // The requests behind it wait, too, whether they would fit or not.
      if (starts && !aged && too_many(snapshot, request, room)) break;
      if (request.bytes > room && is_needy(snapshot, request, now, config)) {
        room += make_room(snapshot, request, request.bytes - room, now);
      }
      if (request.bytes > room) return;
      room -= request.bytes;
      if (starts) rate_ += 1 / request.tbt_slo.count();
      decision_.prioritized.push_back(ranked.index);
    }
  }
}

// Where nobody is out and it fits, memory has the say alone: the pace may be unknown or of another
// load.
bool PacedPolicy::too_many(const RotationSnapshot& snapshot, const RotationRequest& request,
                           Bytes room) const {
  if (!parked_ && request.bytes <= room) return false;
  const double most = snapshot.pace.tokens_per_s;
  const bool promised = most > 0 && rate_ + 1 / request.tbt_slo.count() > kPromised * most;
  return promised || turns_too_short(snapshot, request, room);
}

// Each is out for a gap, then in for as long as there is room for what it shares with those out.
bool PacedPolicy::turns_too_short(const RotationSnapshot& snapshot, const RotationRequest& request,
                                  Bytes room) const {
  if (!request.gap) return false;
  const Bytes out = out_ + std::max(Bytes{0}, request.bytes - room);
  const Bytes in = here_ + std::max(Bytes{0}, room);
  return static_cast<double>(out.value) * kStay * snapshot.pace.step >
         static_cast<double>(in.value) * *request.gap;
}

Bytes PacedPolicy::make_room(const RotationSnapshot& snapshot, const RotationRequest& request,
                             Bytes needed, Seconds now) {
  const EnginePace& pace = snapshot.pace;
  if (pace.step <= Seconds{0} || !may_preempt(snapshot.dram ? &*snapshot.dram : nullptr)) {
    return Bytes{0};
  }
  const Seconds cover = kCover * pace.step + pace.lateness;
  // A victim for it loses some of what keeps its mean gap, but has no longer gap itself.
  const bool for_gap = stands_still(snapshot, request, now);
  const Bytes dram = snapshot.dram ? snapshot.dram->free : kUnlimited;
  Bytes given;
  std::size_t next = left_;
  for (; next < leaving_.size() && given < needed; ++next) {
    const auto& victim = snapshot.requests[leaving_[next].index];
    const bool covered =
        for_gap ? back_by(victim, now) - now >= cover
                : victim.tbt_slo >= kSaves * pace.step && slack(snapshot, victim, now) >= cover;
    // The last one may overshoot what may be moved, or a large one never leaves.
    if (!covered || moved_ + given >= snapshot.b_xfer || moved_ + given + victim.bytes > dram) {
      return Bytes{0};
    }
    given += victim.bytes;
  }
  if (given < needed) return Bytes{0};
  for (; left_ < next; ++left_) decision_.preempted.push_back(leaving_[left_].index);
  moved_ += given;
  return given;
}

}  // namespace kvd::planner
