#include "planner/policy/fcfs.hpp"

namespace kvd::planner {

const RotationDecision& FcfsPolicy::decide(const RotationSnapshot& snapshot, Seconds now,
                                           const RotationConfig& config) {
  begin_decision(decision_, snapshot, now, config);
  queue_.clear();
  Bytes wanted;
  for (std::uint32_t i = 0; i < snapshot.requests.size(); ++i) {
    const auto& request = snapshot.requests[i];
    if (request.state == RequestState::kRunning) continue;
    queue_.push_back({decision_.vlt_s[i], fcfs_key(request).count(), i});
    wanted += request.bytes;
  }
  Bytes left = plannable(snapshot, config);
  decision_.contention = wanted > left;
  std::sort(queue_.begin(), queue_.end(), earlier);
  for (const auto& ranked : queue_) {
    const Bytes bytes = snapshot.requests[ranked.index].bytes;
    if (bytes > left) break;
    left -= bytes;
    decision_.prioritized.push_back(ranked.index);
  }
  return decision_;
}

}  // namespace kvd::planner
