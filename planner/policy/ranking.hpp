#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "planner/policy/rotation.hpp"

namespace kvd::planner {

/// One request as the sorts see it: 24 contiguous bytes, so that sorting does not walk the
/// snapshot.
struct Ranked {
  double vlt;
  double fcfs;
  std::uint32_t index;
};

inline bool earlier(const Ranked& a, const Ranked& b) {
  return a.fcfs != b.fcfs ? a.fcfs < b.fcfs : a.index < b.index;
}

inline bool lags_more(const Ranked& a, const Ranked& b) {
  return a.vlt != b.vlt ? a.vlt > b.vlt : earlier(a, b);
}

/// The free HBM a policy plans with: growth of the running requests comes first.
inline Bytes plannable(const RotationSnapshot& snapshot, const RotationConfig& config) {
  return config.paper ? snapshot.b_hbm : snapshot.b_hbm - snapshot.growth;
}

/// Empties the decision and fills in every request's lag.
inline void begin_decision(RotationDecision& decision, const RotationSnapshot& snapshot,
                           Seconds now, const RotationConfig& config) {
  decision.prioritized.clear();
  decision.preempted.clear();
  decision.layerwise.clear();
  decision.vlt_s.clear();
  for (const auto& request : snapshot.requests) {
    decision.vlt_s.push_back(virtual_lag(request, now, config));
  }
  decision.contention = false;
  decision.b_left.reset();
  decision.b_swap.reset();
}

/// Lets all who queue in by age where `room` has what they want together; otherwise notes that they
/// contend for it.
inline bool all_enter(RotationDecision& decision, std::vector<Ranked>& queue, Bytes wanted,
                      Bytes room) {
  decision.contention = wanted > room;
  if (decision.contention) return false;
  std::sort(queue.begin(), queue.end(), earlier);
  for (const Ranked& ranked : queue) decision.prioritized.push_back(ranked.index);
  return true;
}

/// Keeps only the victims that must leave so that `needed` comes free.
inline void keep_victims(RotationDecision& decision, const RotationSnapshot& snapshot,
                         Bytes needed) {
  std::size_t kept = 0;
  for (; kept < decision.preempted.size() && needed > Bytes{0}; ++kept) {
    needed -= snapshot.requests[decision.preempted[kept]].bytes;
  }
  decision.preempted.resize(kept);
}

}  // namespace kvd::planner
