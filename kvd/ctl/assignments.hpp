#pragma once

#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"

namespace kvd::ctl {

/// "rotation.policy=fcfs rotation.alpha=2" as the JSON merge-patch
/// {"rotation":{"policy":"fcfs","alpha":2}}. A value that reads as JSON is that (numbers, null,
/// true), one with a unit of the configuration's file ("50ms", "1GiB") is seconds or bytes, any
/// other is a string. `root` ("classes" for the SLO document) goes around it all.
/// Errors: InvalidArgument for what is no KEY=VALUE, and for a key given as value and as parent.
[[nodiscard]] Result<std::string> merge_patch(const std::vector<std::string>& assignments,
                                              const std::string& root = "");

}  // namespace kvd::ctl
