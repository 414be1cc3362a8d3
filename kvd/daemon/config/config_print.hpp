#pragma once

#include <string>

namespace kvd::daemon {

/// What --help prints: usage and every key with its variable and default.
[[nodiscard]] std::string help_text();

}  // namespace kvd::daemon
