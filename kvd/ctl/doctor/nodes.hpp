#pragma once

#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/ctl/doctor/diagnosis.hpp"

namespace kvd::ctl::doctor {

/// Whether two nodes find each other's blocks on their remote servers, model by model, and what is
/// in the way. Both are documents of /v1/cache (`kvdctl cache --json`). Pure. Errors:
/// InvalidArgument where one is not.
[[nodiscard]] Result<std::vector<Finding>> compare_nodes(std::string_view here,
                                                         std::string_view there);

}  // namespace kvd::ctl::doctor
