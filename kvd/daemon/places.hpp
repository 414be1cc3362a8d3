#pragma once

#include <chrono>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/result.hpp"
#include "kvd/daemon/config.hpp"

namespace kvd::daemon {

/// Makes the folder of kvd's sockets where it is not. Errors: Unavailable.
[[nodiscard]] Status make_runtime_dir(const Config& config);

/// A kvd that was killed has its sockets, and its kvd-admin the ports, until they have ended:
/// within milliseconds, but seconds where every CPU is busy.
inline constexpr Nanoseconds kPlacePatience = std::chrono::seconds(10);

/// Whether kvd could use every place that its configuration names: the folder of its sockets, which
/// it makes where it is not, the sockets, the token, the folder of the disk cache, the ports.
/// A socket or a port that is taken is waited for, up to kPlacePatience by `clock`.
/// Asked before the pools are populated, which takes minutes where they are large. Each place is
/// taken later, by its own part, which may still be refused it.
/// Errors: Unavailable, PermissionDenied or InvalidArgument, with the remedy.
[[nodiscard]] Status check_places(const Config& config, const Clock& clock);

}  // namespace kvd::daemon
