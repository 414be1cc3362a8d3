#pragma once

#include <string>
#include <string_view>

#include "ipc/vocabulary/units.hpp"
#include "kvd/daemon/config.hpp"

/// What a service manager such as systemd is told, and what it is to allow.
namespace kvd::daemon {

/// Sends "READY=1" and the like to the socket that NOTIFY_SOCKET names; does nothing without one,
/// and never waits. Source: sd_notify(3), whose protocol this is. Owner: any thread.
void notify_service_manager(std::string_view state);

/// Memory that kvd takes at most with this configuration: its pools where they are host memory, and
/// what kvd itself, kvd-admin, the driver and slabs that change domain need.
[[nodiscard]] Bytes memory_at_most(const Config& config);

/// The drop-in of the systemd unit that follows from the configuration: MemoryMax, and the folders
/// outside those of the unit that kvd writes to.
[[nodiscard]] std::string unit_text(const Config& config);

}  // namespace kvd::daemon
