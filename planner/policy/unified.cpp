#include "planner/policy/unified.hpp"

#include "planner/policy/gates.hpp"

namespace kvd::planner {
namespace {

// Iterations after which a request that was passed over goes first, once it has waited as long as
// an urgent prompt has: iterations alone are short on fast hardware. Hopeless requests may be
// passed over for longer, but not for ever: as long as kSkipLimit of the longest answers take.
std::int64_t skip_limit(const RotationSnapshot& snapshot, const RotationConfig& config) {
  std::int64_t longest = 1;
  if (config.overload == Overload::kGoodput) {
    for (const auto& request : snapshot.requests) {
      if (request.output_tokens) longest = std::max(longest, request.output_tokens->value);
    }
  }
  return kSkipLimit * longest;
}

/// Its place among the requests that enter; the smallest goes first.
double place_of(const RotationRequest& request, Seconds now, const RotationConfig& config) {
  if (request.place) return *request.place;
  if (!request.counts_as_waiting()) return fcfs_key(request).count();
  const bool late = config.overload == Overload::kGoodput && request.hopeless(now);
  return (request.t_arr.value_or(now) + due_after(request.ttft_slo, late)).count();
}

Seconds waited(const RotationRequest& request, Seconds now) {
  return now - (request.counts_as_waiting() ? request.t_arr : request.t_last).value_or(now);
}

/// It has waited so long that others of its class leave for it.
bool presses(const RotationRequest& request, Seconds now, const RotationConfig& config) {
  return waited(request, now) >= config.beta_f * request.ttft_slo;
}

/// Its goal for the first token is looser by more than goals of one class differ: learned goals
/// depend on the prompt.
bool is_looser(Seconds goal, Seconds other) { return goal > UnifiedPolicy::kOneClass * other; }

/// Time until it has to be on its way back, lest its user be without a token for too long; none:
/// there is no such time. Negative: it is late.
std::optional<Seconds> gap_left(const RotationRequest& request, Seconds now) {
  if (!request.gap || request.counts_as_waiting()) return std::nullopt;
  return request.t_last.value_or(now) + (1 - UnifiedPolicy::kReturn) * *request.gap - now;
}

/// It has begun, and its gap is about to become too long.
bool stands_still(const RotationSnapshot& snapshot, const RotationRequest& request, Seconds now) {
  const auto left = gap_left(request, now);
  return left && *left < UnifiedPolicy::kNear * snapshot.step;
}

/// Its gap leaves it time to be out.
bool can_be_away(const RotationSnapshot& snapshot, const RotationRequest& request, Seconds now) {
  const auto left = gap_left(request, now);
  return !left || *left >= UnifiedPolicy::kAway * snapshot.step + snapshot.mean_lateness;
}

/// Sorts by who stays longest: requests with the loosest goal come last, and of these the ones that
/// have been on the GPU longest.
auto leaves_later(const RotationSnapshot& snapshot) {
  return [&requests = snapshot.requests](const Ranked& a, const Ranked& b) {
    const Seconds first = requests[a.index].ttft_slo, second = requests[b.index].ttft_slo;
    return first != second ? first < second : lags_more(a, b);
  };
}

}  // namespace

const RotationDecision& UnifiedPolicy::decide(const RotationSnapshot& snapshot, Seconds now,
                                              const RotationConfig& config) {
  begin_decision(decision_, snapshot, now, config);
  rank(snapshot, now, config);
  const Bytes room = plannable(snapshot, config);
  decision_.contention = wanted_ > room;
  if (!decision_.contention) {
    for (const auto& ranked : entering_) decision_.prioritized.push_back(ranked.index);
    return decision_;
  }
  list_covered(snapshot, now);
  serve(snapshot, now, config, room);
  make_room(snapshot, taken_ - room);
  prefill_layerwise(snapshot);
  return decision_;
}

void UnifiedPolicy::rank(const RotationSnapshot& snapshot, Seconds now,
                         const RotationConfig& config) {
  urgent_.clear();
  waiting_.clear();
  parked_.clear();
  loosest_ = Seconds{0};
  pace_ = {};
  dry_ = still_ = false;
  runs_ = 0;
  unserved_.clear();
  leaving_.clear();
  entering_.clear();
  wanted_ = Bytes{0};
  const DramUse* dram = dram_gates(snapshot, config);
  dram_left_ = !dram ? kUnlimited : may_preempt(dram) ? dram->free : Bytes{-1};
  for (std::uint32_t i = 0; i < snapshot.requests.size(); ++i) {
    const auto& request = snapshot.requests[i];
    if (request.state == RequestState::kRunning) {
      ++pace_.running;
      ++runs_;
      pace_.here += request.bytes;
      if ((decision_.vlt_s[i] >= 0 && !request.gap) || !may_leave(request, config)) continue;
      // Where gaps count, a request that is out for long stays out for long, so those leave whose
      // tokens last longest.
      const Seconds saved = request.tbt_slo * static_cast<double>(request.deposit);
      leaving_.push_back(
          {request.gap ? -saved.count() : decision_.vlt_s[i], fcfs_key(request).count(), i});
      loosest_ = std::max(loosest_, request.ttft_slo);
    } else if (may_enter(request, dram)) {
      entering_.push_back({decision_.vlt_s[i], place_of(request, now, config), i});
      wanted_ += request.bytes;
    }
  }
  std::sort(entering_.begin(), entering_.end(), earlier);
  split_entering(snapshot, now, config);
  if (pace_.parked == 0) return;  // then none asks
  for (const auto& request : snapshot.requests) {
    if (!request.counts_as_waiting()) pace_.asked += 1 / request.tbt_slo.count();
  }
}

void UnifiedPolicy::split_entering(const RotationSnapshot& snapshot, Seconds now,
                                   const RotationConfig& config) {
  const std::int64_t limit = skip_limit(snapshot, config);
  aged_ = nullptr;
  for (const auto& ranked : entering_) {
    const auto& request = snapshot.requests[ranked.index];
    if (request.skips < limit || !presses(request, now, config)) continue;
    const auto came = [&](const Ranked& one) { return fcfs_key(snapshot.requests[one.index]); };
    if (!aged_ || came(ranked) < came(*aged_)) aged_ = &ranked;
  }
  for (const auto& ranked : entering_) {
    if (&ranked != aged_) rank_entering(snapshot, ranked, now, config);
  }
  const auto nearer = [](const Ranked& a, const Ranked& b) {
    return a.vlt != b.vlt ? a.vlt < b.vlt : earlier(a, b);
  };
  std::sort(urgent_.begin(), urgent_.end(), nearer);
  const auto goal = [&](const Ranked& one) { return snapshot.requests[one.index].ttft_slo; };
  std::stable_sort(parked_.begin(), parked_.end(),
                   [&](const Ranked& a, const Ranked& b) { return goal(a) < goal(b); });
}

// Urgent entries carry their deadline in the field for the lag.
void UnifiedPolicy::rank_entering(const RotationSnapshot& snapshot, const Ranked& ranked,
                                  Seconds now, const RotationConfig& config) {
  const RotationRequest& request = snapshot.requests[ranked.index];
  Ranked entry = ranked;
  if (request.counts_as_waiting()) {
    const bool last = config.overload == Overload::kGoodput && request.hopeless(now);
    const bool urgent = presses(request, now, config) || is_looser(loosest_, request.ttft_slo);
    entry.vlt = (request.t_arr.value_or(now) + request.ttft_slo).count();
    (urgent && !last ? urgent_ : waiting_).push_back(entry);
    return;
  }
  const bool still = stands_still(snapshot, request, now);
  const bool can_be_saved = request.deposit > 0 || request.gap;
  const bool urgent = still || (can_be_saved && request.deposit <= kAboutToBeDry);
  ++pace_.parked;
  pace_.out += request.bytes;
  dry_ = dry_ || request.deposit == 0;
  still_ = still_ || still;
  const Seconds lasts = request.tbt_slo * static_cast<double>(request.deposit);
  entry.vlt = (now + (still ? std::min(lasts, *gap_left(request, now)) : lasts)).count();
  (urgent ? urgent_ : parked_).push_back(entry);
}

bool UnifiedPolicy::covered(const RotationSnapshot& snapshot,
                            const RotationRequest& request) const {
  // A request that leaves will be as late as others were recently, on top of what makes a rotation
  // worthwhile.
  const auto spare = static_cast<double>(request.deposit - kCovered);
  return spare >= 0 && spare * request.tbt_slo >= snapshot.mean_lateness;
}

// Where a request stands still, those that can be away for it come behind the covered ones: they
// lose some of what keeps their mean, and get no longer gap themselves.
void UnifiedPolicy::list_covered(const RotationSnapshot& snapshot, Seconds now) {
  covered_.clear();
  uncovered_.clear();
  for (const Ranked& ranked : leaving_) {
    const auto& request = snapshot.requests[ranked.index];
    if (!can_be_away(snapshot, request, now)) continue;
    const bool has_saved = covered(snapshot, request);
    if (has_saved || still_) (has_saved ? covered_ : uncovered_).push_back(ranked);
  }
  Bytes sum;
  list_leaving(snapshot, covered_, sum);
  covered_leave_ = decision_.preempted.size();
  list_leaving(snapshot, uncovered_, sum);
}

// Lists them in order of leaving, those with the loosest goal first, as far as one iteration's
// transfers and DRAM reach. Only a few of many leave, and a heap sorts no more than those.
void UnifiedPolicy::list_leaving(const RotationSnapshot& snapshot, std::vector<Ranked>& list,
                                 Bytes& sum) {
  const auto later = leaves_later(snapshot);
  std::make_heap(list.begin(), list.end(), later);
  // The last one may overshoot, or a large request would never leave.
  while (!list.empty() && sum < snapshot.b_xfer) {
    std::pop_heap(list.begin(), list.end(), later);
    const std::uint32_t index = list.back().index;
    list.pop_back();
    const Bytes bytes = snapshot.requests[index].bytes;
    if (bytes > dram_left_) continue;
    sum += bytes;
    dram_left_ -= bytes;
    decision_.preempted.push_back(index);
  }
}

// No request leaves for one of a looser class. For a request that does not press yet, those of
// looser classes leave.
Bytes UnifiedPolicy::can_leave(const RotationSnapshot& snapshot, const RotationRequest& request,
                               For what) const {
  Bytes sum;
  const std::size_t most = what == For::kGap ? decision_.preempted.size() : covered_leave_;
  for (std::size_t i = 0; i < most; ++i) {
    const auto& victim = snapshot.requests[decision_.preempted[i]];
    if (is_looser(request.ttft_slo, victim.ttft_slo)) continue;
    const bool looser = is_looser(victim.ttft_slo, request.ttft_slo);
    if (looser || what != For::kClass) sum += victim.bytes;
  }
  return std::min(sum, snapshot.b_xfer);
}

// The streams that have begun, including this one, ask for no more than kPromised of the tokens
// that engines make a second: with more, all deposits run dry in turn. Where no request is parked,
// running requests ask for what they make.
bool UnifiedPolicy::paced(const RotationSnapshot& snapshot, const RotationRequest& request,
                          Bytes room) const {
  if (!request.counts_as_waiting() || pace_.parked == 0) return true;
  const double asked = pace_.asked + 1 / request.tbt_slo.count();
  const bool made =
      snapshot.tokens_per_s > 0
          ? asked <= kPromised * snapshot.tokens_per_s
          : asked * snapshot.step.count() <= kPromised * static_cast<double>(pace_.running + 1);
  return made && turns_last(snapshot, request, room - taken_);
}

// Each is out for a gap, then in for as long as there is room for what it shares with those that
// are out.
bool UnifiedPolicy::turns_last(const RotationSnapshot& snapshot, const RotationRequest& request,
                               Bytes room) const {
  if (!request.gap) return true;
  const Bytes out = pace_.out + std::max(Bytes{0}, request.bytes - room);
  const Bytes in = pace_.here + std::max(Bytes{0}, room);
  return static_cast<double>(in.value) * *request.gap >=
         static_cast<double>(out.value) * kStay * snapshot.step;
}

// The room that victims leave beyond what they make it for, where it is there in this step.
Bytes UnifiedPolicy::left_by_victims(const RotationSnapshot& snapshot, Bytes room) const {
  Bytes left;
  if (!snapshot.at_once) return left;
  for (const std::uint32_t index : decision_.preempted) {
    if (room + left >= taken_) break;
    left += snapshot.requests[index].bytes;
  }
  return left;
}

bool UnifiedPolicy::take(const RotationSnapshot& snapshot, std::uint32_t index, Bytes limit) {
  const auto& request = snapshot.requests[index];
  if (taken_ + request.bytes > limit) return false;
  taken_ += request.bytes;
  ++pace_.running;
  if (request.counts_as_waiting()) pace_.asked += 1 / request.tbt_slo.count();
  decision_.prioritized.push_back(index);
  return true;
}

void UnifiedPolicy::serve(const RotationSnapshot& snapshot, Seconds now,
                          const RotationConfig& config, Bytes room) {
  taken_ = Bytes{0};
  // Nothing enters until the request that was passed over too often fits: the running ones end, so
  // it will.
  if (aged_) {
    const Bytes leaves = can_leave(snapshot, snapshot.requests[aged_->index], For::kNeed);
    if (!take(snapshot, aged_->index, room + leaves)) return;
  }
  for (const auto& ranked : urgent_) {
    const auto& request = snapshot.requests[ranked.index];
    if (!paced(snapshot, request, room)) continue;
    const bool presses_now = !request.counts_as_waiting() || presses(request, now, config);
    const For what = stands_still(snapshot, request, now) ? For::kGap
                     : presses_now                        ? For::kNeed
                                                          : For::kClass;
    const Bytes leaves = can_leave(snapshot, request, what);
    const bool fits = take(snapshot, ranked.index, room + leaves);
    if (!fits && presses_now && request.counts_as_waiting()) unserved_.push_back(ranked.index);
  }
  room += left_by_victims(snapshot, room);
  // Where gaps count, a parked request that has time loses nothing by a prompt that comes before
  // it.
  const bool gaps = !entering_.empty() && snapshot.requests[entering_.front().index].gap;
  for (const auto* queue : {gaps ? &waiting_ : &parked_, gaps ? &parked_ : &waiting_}) {
    for (const auto& ranked : *queue) {
      if (!paced(snapshot, snapshot.requests[ranked.index], room)) break;
      if (!take(snapshot, ranked.index, room)) return;
    }
  }
}

// Goes as far as one iteration's transfers and DRAM reach.
void UnifiedPolicy::prefill_layerwise(const RotationSnapshot& snapshot) {
  if (dry_) return;  // one more stream would make it wait longer
  Bytes left = snapshot.dram ? std::min(snapshot.b_xfer, dram_left_) : Bytes{0};
  for (const auto index : unserved_) {
    const Bytes bytes = snapshot.requests[index].bytes;
    if (bytes > left) break;
    left -= bytes;
    decision_.layerwise.push_back(index);
  }
}

// Keeps as many victims as are needed. Where growth alone exceeds the room, the requests longest on
// the GPU follow, covered or not. When no request comes in, the last one grows into what all others
// left, if that is free at once; otherwise requests that are out may hold what it lacks, and one of
// them has to go.
void UnifiedPolicy::make_room(const RotationSnapshot& snapshot, Bytes needed) {
  auto& victims = decision_.preempted;
  const std::size_t stay = snapshot.at_once && decision_.prioritized.empty() ? 1 : 0;
  std::size_t kept = 0;
  for (; kept < victims.size() && kept + stay < runs_ && needed > Bytes{0}; ++kept) {
    needed -= snapshot.requests[victims[kept]].bytes;
  }
  victims.resize(kept);
  if (needed <= Bytes{0}) return;
  std::sort(leaving_.begin(), leaving_.end(), leaves_later(snapshot));
  for (auto it = leaving_.rbegin(); it != leaving_.rend() && needed > Bytes{0}; ++it) {
    if (victims.size() + stay >= runs_) return;
    const auto& request = snapshot.requests[it->index];
    if (request.bytes > dram_left_) continue;
    if (std::find(victims.begin(), victims.end(), it->index) != victims.end()) continue;
    dram_left_ -= request.bytes;
    needed -= request.bytes;
    victims.push_back(it->index);
  }
}

}  // namespace kvd::planner
