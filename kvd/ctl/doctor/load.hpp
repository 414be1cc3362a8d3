#pragma once

#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/ctl/doctor/diagnosis.hpp"

namespace kvd::ctl::doctor {

/// What holds back which engine's requests now, who has the memory, and the setting to turn: a
/// finding for each engine of which a request waits whose goal has passed. It reads `overview`, the
/// document of /v1/overview, and nothing else. Errors: InvalidArgument for another document.
[[nodiscard]] Result<std::vector<Finding>> diagnose_load(std::string_view overview);

}  // namespace kvd::ctl::doctor
