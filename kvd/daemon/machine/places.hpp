#pragma once

#include <chrono>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/result.hpp"
#include "kvd/daemon/config/config.hpp"

namespace kvd::daemon {

/// Makes the folder of kvd's sockets where there is none. Errors: Unavailable.
[[nodiscard]] Status make_runtime_dir(const Config& config);

/// How long a taken socket or port is waited for. A killed kvd and its kvd-admin hold theirs until
/// they have ended: milliseconds, or seconds where every CPU is busy.
inline constexpr Nanoseconds kPlacePatience = std::chrono::seconds(10);

/// Whether kvd could use every place that its configuration names: the folder of its sockets, which
/// it makes where it is not, the sockets, the token, the folder of the disk cache, the ports.
/// A socket or a port that is taken is waited for, up to kPlacePatience by `clock`.
/// Asked before the pools are populated, which takes minutes where they are large. Each place is
/// taken later, by its own part, which may still be refused it.
/// Errors: Unavailable, PermissionDenied or InvalidArgument, with the remedy.
[[nodiscard]] Status check_places(const Config& config, const Clock& clock);

}  // namespace kvd::daemon
