#pragma once

#include "kvd/core/door/status.hpp"
#include "kvd/daemon/base/log.hpp"
#include "kvd/daemon/workers/solver.hpp"
#include "kvd/mover/counters.hpp"

namespace kvd::daemon {

/// What the shell counts besides the Controller.
struct ShellCounters {
  mover::MoverCounters mover;
  Solver::Counters solver;
  LogLosses log;
  /// Seconds that a `schedule` took, from its frame to its reply.
  core::Distribution schedule{core::kScheduleBounds};
  std::uint64_t refused_tokens = 0;  ///< over REST
};

}  // namespace kvd::daemon
