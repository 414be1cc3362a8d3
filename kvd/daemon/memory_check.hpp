#pragma once

#include <string>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::daemon {

/// Whether a pool of `wanted` bytes may be populated: the least of MemAvailable - reserve and, over
/// the cgroup and all its ancestors, memory.max - memory.current.
/// `root` is prefixed to /proc and /sys paths (tests give a folder of their own). `pools` names the
/// settings that ask for the bytes.
/// Errors: OutOfMemory with both numbers, the limit that binds, and the remedy.
[[nodiscard]] Status check_memory(Bytes wanted, Bytes reserve, const std::string& root = "",
                                  const std::string& pools = "pool.hbm + pool.dram");

}  // namespace kvd::daemon
