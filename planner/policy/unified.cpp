#include "planner/policy/unified.hpp"

#include "planner/policy/gates.hpp"

namespace kvd::planner {
namespace {

bool covered(const RotationRequest& request) { return request.deposit >= UnifiedPolicy::kCovered; }

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
  const Bytes can_leave = list_covered(snapshot);
  const Bytes taken = serve(snapshot, room, can_leave);
  make_room(snapshot, taken - room);
  return decision_;
}

void UnifiedPolicy::rank(const RotationSnapshot& snapshot, Seconds now,
                         const RotationConfig& config) {
  urgent_.clear();
  patient_.clear();
  leaving_.clear();
  entering_.clear();
  wanted_ = Bytes{0};
  const DramUse* dram = dram_gates(snapshot, config);
  dram_left_ = !dram ? kUnlimited : may_preempt(dram) ? dram->free : Bytes{-1};
  for (std::uint32_t i = 0; i < snapshot.requests.size(); ++i) {
    const auto& request = snapshot.requests[i];
    const Ranked ranked{decision_.vlt_s[i], fcfs_key(request).count(), i};
    if (request.state == RequestState::kRunning) {
      // One that came in and has made no token yet would be moved for nothing, again and again.
      if (ranked.vlt < 0 && request.made_token && !request.prefilling) leaving_.push_back(ranked);
    } else if (admits_waiting(dram) || !request.counts_as_waiting()) {
      entering_.push_back(ranked);
      wanted_ += request.bytes;
    }
  }
  std::sort(leaving_.begin(), leaving_.end(), lags_more);
  std::sort(entering_.begin(), entering_.end(), earlier);
  aged_ = nullptr;
  for (const auto& ranked : entering_) {
    const auto& request = snapshot.requests[ranked.index];
    if (!aged_ && request.skips >= kSkipLimit) {
      aged_ = &ranked;
    } else {
      rank_entering(request, ranked, now, config);
    }
  }
  const auto nearer = [](const Ranked& a, const Ranked& b) {
    return a.vlt != b.vlt ? a.vlt < b.vlt : earlier(a, b);
  };
  std::sort(urgent_.begin(), urgent_.end(), nearer);
}

// Urgent entries carry their deadline in place of the lag.
void UnifiedPolicy::rank_entering(const RotationRequest& request, const Ranked& ranked, Seconds now,
                                  const RotationConfig& config) {
  Ranked entry = ranked;
  bool urgent = false;
  if (request.counts_as_waiting()) {
    const Seconds arrived = request.t_arr.value_or(now);
    urgent = now - arrived >= config.beta_f * request.ttft_slo;
    entry.vlt = (arrived + request.ttft_slo).count();
  } else {
    urgent = request.deposit > 0 && request.deposit <= kAboutToBeDry;
    entry.vlt = (now + request.tbt_slo * static_cast<double>(request.deposit)).count();
  }
  (urgent ? urgent_ : patient_).push_back(entry);
}

// The covered ones in order of leaving, as far as one iteration's transfers and DRAM reach.
Bytes UnifiedPolicy::list_covered(const RotationSnapshot& snapshot) {
  Bytes sum;
  for (auto it = leaving_.rbegin(); it != leaving_.rend(); ++it) {
    const auto& request = snapshot.requests[it->index];
    if (!covered(request) || request.bytes > dram_left_) continue;
    if (sum + request.bytes > snapshot.b_xfer) break;
    sum += request.bytes;
    dram_left_ -= request.bytes;
    decision_.preempted.push_back(it->index);
  }
  return sum;
}

// Returns what the requests taken need.
Bytes UnifiedPolicy::serve(const RotationSnapshot& snapshot, Bytes room, Bytes can_leave) {
  Bytes taken;
  const auto take = [&](const Ranked& ranked, Bytes limit) {
    const Bytes bytes = snapshot.requests[ranked.index].bytes;
    if (taken + bytes > limit) return false;
    taken += bytes;
    decision_.prioritized.push_back(ranked.index);
    return true;
  };
  // Until the one passed over too often fits, nobody enters: the running ones end, so it will.
  if (aged_ && !take(*aged_, room + can_leave)) return taken;
  for (const auto& ranked : urgent_) (void)take(ranked, room + can_leave);
  for (const auto& ranked : patient_) {
    if (!take(ranked, room)) break;
  }
  return taken;
}

// Keeps as many victims as are needed. Where growth alone exceeds the room, covered or not, the
// longest on the GPU follow.
void UnifiedPolicy::make_room(const RotationSnapshot& snapshot, Bytes needed) {
  auto& victims = decision_.preempted;
  std::size_t kept = 0;
  for (; kept < victims.size() && needed > Bytes{0}; ++kept) {
    needed -= snapshot.requests[victims[kept]].bytes;
  }
  victims.resize(kept);
  for (auto it = leaving_.rbegin(); it != leaving_.rend() && needed > Bytes{0}; ++it) {
    const auto& request = snapshot.requests[it->index];
    if (request.bytes > dram_left_) continue;
    if (std::find(victims.begin(), victims.end(), it->index) != victims.end()) continue;
    dram_left_ -= request.bytes;
    needed -= request.bytes;
    victims.push_back(it->index);
  }
}

}  // namespace kvd::planner
