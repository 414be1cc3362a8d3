#pragma once

#include <string>

#include "ipc/vocabulary/result.hpp"

namespace kvd::daemon {

/// The token that admin changes need: read from `path`, or made (256 random bits in hex, mode 0600)
/// when there is none.
/// Errors: PermissionDenied for a file that others may read or that is another user's, Unavailable
/// when it cannot be written.
[[nodiscard]] Result<std::string> load_or_make_token(const std::string& path);

/// Writes the token of a running kvd where its file is gone, with its folder or without. Where that
/// fails nothing happens, and the next call tries again.
void restore_token(const std::string& path, const std::string& token);

}  // namespace kvd::daemon
