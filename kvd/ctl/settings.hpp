#pragma once

#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"

namespace kvd::ctl {

/// Makes a table of /v1/config and /v1/config/origins: every key, its value in force and who set
/// it; last, what was changed live and what the next start has instead.
/// Errors: Internal where they are not what this kvdctl knows.
[[nodiscard]] Result<std::string> settings_table(std::string_view config, std::string_view origins);

/// The live changes as lines for the configuration's file. Errors: likewise.
[[nodiscard]] Result<std::string> settings_lines(std::string_view config, std::string_view origins);

/// Both documents as one, {"config": …, "origins": …, "live": …}. Errors: likewise.
[[nodiscard]] Result<std::string> settings_json(std::string_view config, std::string_view origins);

}  // namespace kvd::ctl
