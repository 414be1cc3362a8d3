#pragma once

#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"

namespace kvd::ctl {

/// Puts the live changes into `file`, the text of kvd.toml. A key replaces its line or joins its
/// table; comments and the order of everything else stay. `config` and `origins` are what
/// /v1/config and /v1/config/origins answer.
/// Errors: Internal where this kvdctl does not know these documents; Unsupported where the file
/// sets a key within another line (`slo.default.tbt = …` or `slo = { … }`).
[[nodiscard]] Result<std::string> settings_saved(std::string_view file, std::string_view config,
                                                 std::string_view origins);

/// The file that a link leads to, else what was named. It is to be read and written by the path
/// returned, as a link may be led elsewhere in between.
/// Errors: InvalidArgument where the link leads nowhere; PermissionDenied for a link of another
/// user than root and the caller.
[[nodiscard]] Result<std::string> linked_file(const std::string& named);

/// Writes `text` to the file, whole or not at all; an existing one keeps its mode and owner.
/// Errors: Unavailable with the system's reason.
[[nodiscard]] Status replace_file(const std::string& path, const std::string& text);

}  // namespace kvd::ctl
