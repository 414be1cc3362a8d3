#include "planner/baselines/queue_policy.hpp"

#include "planner/policy/gates.hpp"

namespace kvd::planner {
namespace {

// When the request joined the queue: on arrival, or when it was preempted.
Seconds queued_since(const RotationRequest& request) {
  const bool waiting = request.counts_as_waiting();
  return waiting ? request.t_arr.value_or(Seconds{0}) : *request.t_last;
}

}  // namespace

const RotationDecision& QueuePolicy::decide(const RotationSnapshot& snapshot, Seconds now,
                                            const RotationConfig& config) {
  begin_decision(decision_, snapshot, now, config);
  rank(snapshot, config);
  const Bytes room = plannable(snapshot, config);
  if (all_enter(decision_, queue_, wanted_, room)) return decision_;
  order();
  const Bytes can_leave = available(snapshot, config);
  const Bytes taken = take(snapshot, room, can_leave);
  if (rule_ != QueueRule::kSiCode) keep_victims(decision_, snapshot, taken - room);
  return decision_;
}

void QueuePolicy::rank(const RotationSnapshot& snapshot, const RotationConfig& config) {
  queue_.clear();
  running_.clear();
  wanted_ = Bytes{0};
  const DramUse* dram = dram_gates(snapshot, config);
  for (std::uint32_t i = 0; i < snapshot.requests.size(); ++i) {
    const auto& request = snapshot.requests[i];
    if (request.state == RequestState::kRunning) {
      running_.push_back({decision_.vlt_s[i], fcfs_key(request).count(), i});
    } else if (may_enter(request, dram)) {
      // The first key puts the class that goes first in front; lvf's lag plays no part here.
      const bool first = request.counts_as_waiting() == (rule_ == QueueRule::kWaitingFirst);
      const double rank = rule_ == QueueRule::kSiCode || first ? 1 : 0;
      const Seconds since = rule_ == QueueRule::kSiCode ? queued_since(request) : fcfs_key(request);
      queue_.push_back({rank, since.count(), i});
      wanted_ += request.bytes;
    }
  }
}

// Puts the queue head first, and the requests that leave first at the end of the running ones.
void QueuePolicy::order() {
  std::sort(queue_.begin(), queue_.end(), lags_more);
  std::sort(running_.begin(), running_.end(), lags_more);
  if (rule_ == QueueRule::kSwappedFirst) std::reverse(running_.begin(), running_.end());
}

// Lists the requests that may leave, in order, as far as one iteration's transfers and DRAM reach.
Bytes QueuePolicy::available(const RotationSnapshot& snapshot, const RotationConfig& config) {
  const DramUse* dram = dram_gates(snapshot, config);
  Bytes sum;
  if (!may_preempt(dram)) return sum;
  // The published code takes its budget as a target for the free pool, too.
  if (rule_ == QueueRule::kSiCode && snapshot.b_hbm >= snapshot.b_xfer) return sum;
  Bytes dram_left = dram ? dram->free : kUnlimited;
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    const auto& request = snapshot.requests[it->index];
    if (it->vlt >= 0 || !may_leave(request, config)) continue;
    const Bytes with = sum + request.bytes;
    const bool over =
        rule_ == QueueRule::kSiCode ? with >= snapshot.b_xfer : with > snapshot.b_xfer;
    if (over || request.bytes > dram_left) break;
    dram_left -= request.bytes;
    sum = with;
    decision_.preempted.push_back(it->index);
  }
  return sum;
}

// Returns what the taken requests need.
Bytes QueuePolicy::take(const RotationSnapshot& snapshot, Bytes room, Bytes available) {
  Bytes taken;
  for (const auto& ranked : queue_) {
    const auto& request = snapshot.requests[ranked.index];
    const bool evicts = rule_ == QueueRule::kSiCode ||
                        (rule_ == QueueRule::kWaitingFirst && request.counts_as_waiting());
    if (taken + request.bytes > room + (evicts ? available : Bytes{0})) break;
    taken += request.bytes;
    decision_.prioritized.push_back(ranked.index);
  }
  return taken;
}

}  // namespace kvd::planner
