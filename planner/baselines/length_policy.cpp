#include "planner/baselines/length_policy.hpp"

#include <limits>

#include "planner/policy/gates.hpp"

namespace kvd::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool shorter(const Ranked& a, const Ranked& b) {
  return a.vlt != b.vlt ? a.vlt < b.vlt : earlier(a, b);
}

}  // namespace

const RotationDecision& LengthPolicy::decide(const RotationSnapshot& snapshot, Seconds now,
                                             const RotationConfig& config) {
  begin_decision(decision_, snapshot, now, config);
  rank(snapshot, config);
  const Bytes room = plannable(snapshot, config);
  if (all_enter(decision_, queue_, wanted_, room)) return decision_;
  std::sort(queue_.begin(), queue_.end(), shorter);
  std::sort(running_.begin(), running_.end(), shorter);
  take(snapshot, room);
  return decision_;
}

double LengthPolicy::score(const RotationRequest& request, const RotationConfig& config) const {
  const bool queues = request.state != RequestState::kRunning;
  if (queues && !config.paper && request.skips >= kSkipLimit) return -kInfinity;
  if (!request.output_tokens) return kInfinity;
  const auto whole = static_cast<double>(request.output_tokens->value);
  if (rule_ != LengthRule::kSrtf) return whole;
  return std::max(0.0, whole - static_cast<double>(request.tokens_made.value));
}

void LengthPolicy::rank(const RotationSnapshot& snapshot, const RotationConfig& config) {
  queue_.clear();
  running_.clear();
  wanted_ = Bytes{0};
  const DramUse* dram = dram_gates(snapshot, config);
  transfer_left_ = may_preempt(dram) ? snapshot.b_xfer : Bytes{0};
  dram_left_ = dram ? dram->free : kUnlimited;
  for (std::uint32_t i = 0; i < snapshot.requests.size(); ++i) {
    const auto& request = snapshot.requests[i];
    const Ranked ranked{score(request, config), fcfs_key(request).count(), i};
    if (request.state == RequestState::kRunning) {
      if (decision_.vlt_s[i] < 0 && may_leave(request, config)) running_.push_back(ranked);
    } else if (may_enter(request, dram)) {
      queue_.push_back(ranked);
      wanted_ += request.bytes;
    }
  }
}

void LengthPolicy::take(const RotationSnapshot& snapshot, Bytes room) {
  for (const auto& ranked : queue_) {
    const Bytes bytes = snapshot.requests[ranked.index].bytes;
    if (bytes > room && rule_ == LengthRule::kLtr) evict(snapshot, ranked.vlt, bytes, room, false);
    if (bytes > room) break;
    room -= bytes;
    decision_.prioritized.push_back(ranked.index);
  }
  // Growth alone may exceed the room. Lengths are not negative, so any request may leave.
  if (room < Bytes{0}) evict(snapshot, -1, Bytes{0}, room, true);
}

// The longest leave, as long as they are longer than `score`, until `room` reaches `wanted`. None
// of them leaves where that cannot be reached, unless a part of it helps.
void LengthPolicy::evict(const RotationSnapshot& snapshot, double score, Bytes wanted, Bytes& room,
                         bool part_helps) {
  Bytes gathered;
  std::size_t leaving = 0;
  for (auto it = running_.rbegin(); it != running_.rend() && room + gathered < wanted; ++it) {
    const Bytes with = gathered + snapshot.requests[it->index].bytes;
    if (it->vlt <= score || with > std::min(transfer_left_, dram_left_)) break;
    gathered = with;
    ++leaving;
  }
  if (room + gathered < wanted && !part_helps) return;
  for (; leaving > 0; --leaving) {
    decision_.preempted.push_back(running_.back().index);
    running_.pop_back();
  }
  transfer_left_ -= gathered;
  dram_left_ -= gathered;
  room += gathered;
}

}  // namespace kvd::planner
