#pragma once

#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"

namespace kvd::ctl {

/// The snapshots of an answer of /v1/snapshots/…, one a line, as `kvd-plan KIND --batch` reads
/// them; a single one does without --batch. Errors: Internal when it is not the JSON this knows.
[[nodiscard]] Result<std::string> snapshot_lines(std::string_view document);

}  // namespace kvd::ctl
