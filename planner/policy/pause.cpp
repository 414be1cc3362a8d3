#include "planner/policy/pause.hpp"

#include <algorithm>

namespace kvd::planner {

Result<ResumeDecision> decide_resume(const ResumeQuestion& question, const PlacementPolicy& policy,
                                     const PlacementConfig& config, const Clock& clock) {
  ResumeDecision decision;
  PlacementSnapshot batch = question.running;
  for (const auto& request : question.paused) {
    const bool alone = batch.requests.empty();
    if (!alone && !question.ended_since) break;
    batch.requests.push_back(request);
    KVD_ASSIGN_OR_RETURN(auto plan, policy.decide(batch, config, clock));
    if (!plan.feasible && !alone) break;
    decision.plan = std::move(plan);
    ++decision.resumed;
  }
  return decision;
}

std::vector<Eviction> evict_paused(std::span<const PausedLayers> paused, Blocks needed) {
  std::vector<Eviction> order;
  std::vector<Blocks> given(paused.size());
  std::vector<std::size_t> left;
  for (const auto& request : paused) left.push_back(request.resident.size());
  while (needed > Blocks{0}) {
    std::size_t next = paused.size();
    for (std::size_t r = 0; r < paused.size(); ++r) {
      const bool gives = left[r] > 0 && paused[r].blocks > Blocks{0};
      if (gives && (next == paused.size() || given[r] < given[next])) next = r;
    }
    if (next == paused.size()) break;
    order.push_back({next, paused[next].resident[--left[next]]});
    given[next] += paused[next].blocks;
    needed -= paused[next].blocks;
  }
  return order;
}

}  // namespace kvd::planner
