#pragma once

#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/ctl/doctor/diagnosis.hpp"

namespace kvd::ctl::doctor {

/// The findings of `document`, that of /v1/load; one that all is well where it has none.
/// Errors: InvalidArgument for another document.
[[nodiscard]] Result<std::vector<Finding>> findings_of_load(std::string_view document);

}  // namespace kvd::ctl::doctor
