#pragma once

#include "kvd/daemon/log.hpp"
#include "kvd/daemon/solver.hpp"
#include "kvd/mover/counters.hpp"

namespace kvd::daemon {

/// What the shell counts besides the Controller.
struct ShellCounters {
  mover::MoverCounters mover;
  Solver::Counters solver;
  LogLosses log;
};

}  // namespace kvd::daemon
