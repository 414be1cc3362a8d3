#pragma once

#include <vector>

#include "kvd/admin/link/snapshot.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/daemon/service/shell_counters.hpp"
#include "metrics/catalogue/sample.hpp"

namespace kvd::daemon {

/// Turns the controller's state, the shell's and the daemon's description into samples of the
/// metrics catalogue. Pure. An engine appears as "name-id", so that two engines of one name stay
/// apart; characters of its name outside printable ASCII become '?'.
void collect(const core::ControllerStatus& status, const ShellCounters& shell,
             const admin::DaemonInfo& info, std::vector<metrics::Sample>& out);

}  // namespace kvd::daemon
