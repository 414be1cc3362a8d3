#include "planner/policy/placement/pause.hpp"

#include <algorithm>

namespace kvd::planner {

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
