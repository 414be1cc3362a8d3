#include "client_lib/src/memory/unmap.hpp"

#include <utility>

#include "client_lib/src/memory/mapping_hold.hpp"
#include "ipc/vocabulary/keep.hpp"

namespace kvd::client {
namespace {

bool unmap(SlabMemory& memory, SlabRanges& ranges, Nanoseconds limit) {
  if (memory.quiesce(limit).ok()) return ranges.clear(), true;
  for (auto& range : ranges) keep_for_ever(std::move(range));
  return false;
}

}  // namespace

bool unmap_when_idle(std::shared_ptr<SlabMemory> memory, SlabRanges ranges, Nanoseconds limit) {
  if (ranges.empty()) return true;
  const auto shared = std::make_shared<SlabRanges>(std::move(ranges));  // functions are copyable
  const auto done = std::make_shared<bool>(false);
  MappingHold::of_process().when_free([memory = std::move(memory), shared, limit, done] {
    *done = unmap(*memory, *shared, limit);
  });
  return *done;
}

}  // namespace kvd::client
