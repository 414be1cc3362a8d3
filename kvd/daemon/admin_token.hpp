#pragma once

#include <string>

#include "ipc/vocabulary/result.hpp"

namespace kvd::daemon {

/// The token that admin changes need: read from `path`, or made (256 random bits in hex, mode 0600)
/// when there is none.
/// Errors: PermissionDenied for a file that others may read or that is another user's, Unavailable
/// when it cannot be written.
[[nodiscard]] Result<std::string> load_or_make_token(const std::string& path);

}  // namespace kvd::daemon
