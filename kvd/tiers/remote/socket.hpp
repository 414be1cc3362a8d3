#pragma once

#include <string>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::remote {

/// Checks how a server is named: `host:port`, `[address]:port` or `unix:/path`. Errors:
/// InvalidArgument with the forms that there are.
[[nodiscard]] Status check_address(const std::string& address);

/// A connected socket that does not block. Waits at most `patience`, and for the resolver as long
/// as that takes where a host has a name. Errors: Unavailable with what the system says.
[[nodiscard]] Result<UniqueFd> dial(const std::string& address, Nanoseconds patience);

}  // namespace kvd::remote
