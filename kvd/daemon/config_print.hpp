#pragma once

#include <string>

namespace kvd::daemon {

struct Config;

/// Every key with its effective value as one JSON object, for GET /v1/config.
[[nodiscard]] std::string to_json(const Config& config);

/// What --help prints: usage and every key with its variable and default.
[[nodiscard]] std::string help_text();

}  // namespace kvd::daemon
