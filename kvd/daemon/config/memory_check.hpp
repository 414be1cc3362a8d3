#pragma once

#include <string>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/host/host_memory.hpp"

namespace kvd::daemon {

/// The memory that this process may use, and how much of it is free. The former is the least of
/// MemTotal and, for its control group and all ancestors, memory.max and memory.high.
struct MemoryRoom {
  struct Limit {
    Bytes bytes;
    std::string reason;  ///< the authority, and the sum behind the bytes
  };
  Limit most;  ///< with nobody else there
  Limit now;
};

/// `reserve`: left to the rest of the machine. `root` is prefixed to /proc and /sys paths (tests
/// give a folder of their own).
/// Errors: Unavailable where /proc does not say.
[[nodiscard]] Result<MemoryRoom> memory_room(Bytes reserve, const std::string& root = "");

/// Whether pools can ever fit, with what kvd needs beside them. `names` are the settings that ask
/// for them.
/// Errors: OutOfMemory with both numbers, the limit that binds, and the remedy.
[[nodiscard]] Status check_memory(Bytes pools, Bytes beside, const MemoryRoom& room,
                                  const std::string& names);

/// What is asked before slabs are populated: whether they fit now, beside what kvd is going to
/// need. Errors: those of memory_room(); OutOfMemory with the numbers.
[[nodiscard]] kernels::MayTake memory_gate(Bytes reserve, const std::string& root = "");

}  // namespace kvd::daemon
