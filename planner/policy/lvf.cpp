#include "planner/policy/lvf.hpp"

#include "planner/policy/gates.hpp"

namespace kvd::planner {

const RotationDecision& LvfPolicy::decide(const RotationSnapshot& snapshot, Seconds now,
                                          const RotationConfig& config) {
  begin_decision(decision_, snapshot, now, config);
  rank(snapshot, config);
  if (all_enter(decision_, entering_, wanted_, plannable(snapshot, config))) return decision_;
  const Bytes left = take_by_lag(snapshot, config);
  const Bytes swap = snapshot.b_xfer - left;
  decision_.b_left = left;
  decision_.b_swap = swap;
  if (swap > Bytes{0}) preempt(snapshot, config, swap);
  return decision_;
}

void LvfPolicy::rank(const RotationSnapshot& snapshot, const RotationConfig& config) {
  entering_.clear();
  running_.clear();
  wanted_ = Bytes{0};
  const DramUse* dram = dram_gates(snapshot, config);
  for (std::uint32_t i = 0; i < snapshot.requests.size(); ++i) {
    const auto& request = snapshot.requests[i];
    const Ranked ranked{decision_.vlt_s[i], fcfs_key(request).count(), i};
    if (request.state == RequestState::kRunning) {
      running_.push_back(ranked);
    } else if (may_enter(request, dram)) {
      entering_.push_back(ranked);
      wanted_ += request.bytes;
    }
  }
}

// Step 3 of Algorithm 1 over waiting and rotary requests; returns B_left. The loop does not break:
// a smaller request may overtake one that does not fit, and ageing bounds that.
Bytes LvfPolicy::take_by_lag(const RotationSnapshot& snapshot, const RotationConfig& config) {
  std::sort(entering_.begin(), entering_.end(), lags_more);
  Bytes left = plannable(snapshot, config) + snapshot.b_xfer;
  if (!config.paper) {
    promote_aged(snapshot);
    if (!entering_.empty()) {
      const auto& head = snapshot.requests[entering_.front().index];
      // Reserves room: none enters, and a whole transfer budget is freed for the request that
      // waits.
      if (head.skips >= kSkipLimit && head.bytes > left) return Bytes{0};
    }
  }
  for (const auto& ranked : entering_) {
    const Bytes bytes = snapshot.requests[ranked.index].bytes;
    if (bytes > left) continue;
    left -= bytes;
    decision_.prioritized.push_back(ranked.index);
  }
  return left;
}

void LvfPolicy::promote_aged(const RotationSnapshot& snapshot) {
  auto first = entering_.end();
  for (auto it = entering_.begin(); it != entering_.end(); ++it) {
    if (snapshot.requests[it->index].skips < kSkipLimit) continue;
    if (first == entering_.end() || earlier(*it, *first)) first = it;
  }
  if (first != entering_.end()) std::rotate(entering_.begin(), first, first + 1);
}

void LvfPolicy::preempt(const RotationSnapshot& snapshot, const RotationConfig& config,
                        Bytes needed) {
  const Bytes available = gather_victims(snapshot, config, needed);
  if (available >= needed || config.paper) return;
  // The victims for a smaller need are a prefix of those for a larger one, so this equals dropping
  // the last taken and choosing again.
  keep_victims(decision_, snapshot, drop_last_taken(snapshot, needed, available));
}

// Takes who lags least until enough is gathered; returns what was gathered. Only a few of many
// leave, and a heap sorts no more than those.
Bytes LvfPolicy::gather_victims(const RotationSnapshot& snapshot, const RotationConfig& config,
                                Bytes needed) {
  const DramUse* dram = dram_gates(snapshot, config);
  Bytes gathered;
  if (!may_preempt(dram)) return gathered;
  Bytes dram_left = dram ? dram->free : kUnlimited;
  std::make_heap(running_.begin(), running_.end(), lags_more);
  for (; !running_.empty() && running_.front().vlt < 0 && gathered < needed; running_.pop_back()) {
    std::pop_heap(running_.begin(), running_.end(), lags_more);
    const std::uint32_t index = running_.back().index;
    const auto& request = snapshot.requests[index];
    if (!may_leave(request, config) || request.bytes > dram_left) continue;
    dram_left -= request.bytes;
    gathered += request.bytes;
    decision_.preempted.push_back(index);
  }
  return gathered;
}

// Returns what is still needed once the victims can cover it, or once nothing is left to drop.
Bytes LvfPolicy::drop_last_taken(const RotationSnapshot& snapshot, Bytes needed, Bytes available) {
  auto& taken = decision_.prioritized;
  while (needed > available && !taken.empty()) {
    needed -= snapshot.requests[taken.back()].bytes;
    taken.pop_back();
  }
  return needed;
}

}  // namespace kvd::planner
