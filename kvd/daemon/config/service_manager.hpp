#pragma once

#include <string>
#include <string_view>

#include "kvd/daemon/config/config.hpp"

/// What a service manager such as systemd is told, and what it has to allow.
namespace kvd::daemon {

/// Sends "READY=1" and the like to the socket that NOTIFY_SOCKET names; does nothing without one,
/// and never waits. Source: sd_notify(3), whose protocol this is. Owner: any thread.
void notify_service_manager(std::string_view state);

/// The drop-in of the systemd unit that follows from the configuration: MemoryMax, restarts
/// without end, and the folders outside those of the unit that kvd writes to.
[[nodiscard]] std::string unit_text(const Config& config);

}  // namespace kvd::daemon
