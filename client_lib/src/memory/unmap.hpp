#pragma once

#include <memory>
#include <vector>

#include "client_lib/src/memory/slab_memory.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::client {

using SlabRanges = std::vector<std::unique_ptr<SlabRange>>;

/// How long memory waits for work that may still use it, unless the caller says otherwise.
constexpr Nanoseconds kLongestDrain = std::chrono::seconds(1);

/// Unmaps memory that kernels and copies of this process may still use, as cudaFree does: waits for
/// the device first. Memory that may still be in use after `limit` stays mapped for ever, since a
/// kernel that loses its memory ends the whole context. While mappings are held it waits for their
/// release. False: some of it is still mapped, so the daemon must not be told that it is not.
bool unmap_when_idle(std::shared_ptr<SlabMemory> memory, SlabRanges ranges, Nanoseconds limit);

}  // namespace kvd::client
