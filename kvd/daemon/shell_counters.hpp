#pragma once

#include "kvd/core/status.hpp"
#include "kvd/daemon/log.hpp"
#include "kvd/daemon/solver.hpp"
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
