#pragma once

#include "ipc/vocabulary/units.hpp"

namespace kvd::transport {

/// Whether a waiter that spins may have the core that its peer needs: two CPUs at most are ours.
[[nodiscard]] bool few_cpus();

/// How long a waiter looks at a ring before it sleeps. Waking another core costs more than a
/// command, and a spinning waiter on the last core keeps its peer from running: 50 us, nothing on
/// few CPUs.
[[nodiscard]] Nanoseconds default_spin();

/// The same for a waiter that gives its core away between two looks. On few CPUs it looks longer,
/// for 300 us, because a sleeping waiter takes long to wake.
[[nodiscard]] Nanoseconds yielding_spin();

}  // namespace kvd::transport
