#pragma once

#include <optional>

#include "tests/support/faulty/faulty_backend.hpp"

namespace kvd::test {

/// What the host backend of daemons made from now on in this process shall get wrong; none: they
/// have it as it is. A test program that links faulty_daemon.cpp has this in place of the daemon's
/// own choice of a backend (kvd/daemon/memory/backend.hpp).
void script_faults(std::optional<kernels::FaultScript> script);

}  // namespace kvd::test
