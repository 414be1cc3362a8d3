#include "planner/model/memory.hpp"

#include <algorithm>

namespace kvd::planner {

PlacementMemory placement_memory(std::size_t layers, std::span<const StreamedRequest> requests,
                                 bool open_blocks) {
  PlacementMemory memory;
  std::vector<std::int64_t> need(layers + 1, 0);
  for (const auto& request : requests) {
    const auto streamed = static_cast<std::int64_t>(request.offloaded.size());
    memory.resident += request.blocks * (static_cast<std::int64_t>(layers) - streamed);
    memory.fetched += request.blocks * streamed;
    if (streamed > 0) memory.staging_strict += request.blocks;
    if (open_blocks) memory.resident += Blocks(streamed);
    for (const auto layer : request.offloaded) {
      need[static_cast<std::size_t>(layer)] += request.blocks.value;
    }
  }
  memory.staging_eq1 = Blocks(*std::max_element(need.begin(), need.end()));
  return memory;
}

}  // namespace kvd::planner
