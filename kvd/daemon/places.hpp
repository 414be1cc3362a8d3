#pragma once

#include "ipc/vocabulary/result.hpp"
#include "kvd/daemon/config.hpp"

namespace kvd::daemon {

/// Makes the folder of kvd's sockets where it is not. Errors: Unavailable.
[[nodiscard]] Status make_runtime_dir(const Config& config);

/// Whether kvd could use every place that its configuration names: the folder of its sockets, which
/// it makes where it is not, the sockets, the token, the folder of the disk cache, the ports.
/// Asked before the pools are populated, which takes minutes where they are large. Each place is
/// taken later, by its own part, which may still be refused it.
/// Errors: Unavailable, PermissionDenied or InvalidArgument, with the remedy.
[[nodiscard]] Status check_places(const Config& config);

}  // namespace kvd::daemon
