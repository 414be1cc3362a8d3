#pragma once

#include "ipc/vocabulary/units.hpp"

namespace kvd::transport {

/// How long a waiter looks at a ring before it sleeps. Waking another core costs more than a
/// command, and a spinning waiter on the last core keeps its peer from running: 50 us where more
/// than two CPUs are ours, else nothing.
[[nodiscard]] Nanoseconds default_spin();

}  // namespace kvd::transport
