#pragma once

#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

/// What the attach socket and the command socket share.
namespace kvd::transport {

/// Errors: InvalidArgument for an empty path or one over 107 bytes.
[[nodiscard]] Result<sockaddr_un> unix_address(const std::string& path);

/// A listening socket of `type` (SOCK_SEQPACKET or SOCK_STREAM) at `path`, non-blocking, CLOEXEC,
/// mode 0660 whatever the umask. A file nobody answers at is replaced; of several daemons that
/// start at once one gets the path. Leaves an empty file `path`.lock beside it.
/// Errors: InvalidArgument for a path too long, Unavailable otherwise.
[[nodiscard]] Result<UniqueFd> listen_unix(const std::string& path, int type);

/// "what: strerror(errno)" with a code.
[[nodiscard]] inline Error errno_error(ErrorCode code, std::string_view what) {
  return make_error(code, std::string(what) + ": " + std::strerror(errno));
}

}  // namespace kvd::transport
