#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

/// Descriptors that outlive kvd: systemd's, or kvd-holder's. Source: sd_pid_notify_with_fds(3),
/// sd_listen_fds(3), whose protocol this is.
namespace kvd::daemon {

/// Sends a text, and a descriptor where there is one, to the socket that NOTIFY_SOCKET names: a
/// path, a name in the abstract namespace ("@..."), or kvd-holder's, which this process has
/// inherited ("fd:N"). False: there is no socket, or it does not take the text (within two seconds
/// where `waits` is set). Any thread may call.
bool tell_service_manager(std::string_view text, std::optional<int> fd, bool waits);

/// How many descriptors kvd's starter keeps for it: FDSTORE of the environment, or 0 without it or
/// without NOTIFY_SOCKET.
[[nodiscard]] std::size_t descriptors_kept();

/// Takes the descriptors that an earlier process stored, by name, and makes them close-on-exec;
/// what came a second time under a name is closed. To be called once, before other threads run: it
/// takes LISTEN_FDS and the like out of the environment. Under kvd-holder the process ends with it
/// from now on, as by SIGTERM.
[[nodiscard]] std::map<std::string, UniqueFd> take_kept_descriptors();

/// Has the descriptor kept under the name, beside this process's own.
/// Errors: Unavailable where nobody takes it within two seconds.
[[nodiscard]] Status keep_descriptor(const std::string& name, int fd);
/// Closes all that are kept under the name.
void drop_kept_descriptor(const std::string& name);
/// Waits until all that was said before has been done and dropped descriptors are closed, two
/// seconds at most.
/// Source: sd_notify_barrier(3).
void wait_for_descriptor_store();

}  // namespace kvd::daemon
