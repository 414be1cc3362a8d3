#pragma once

#include <string_view>
#include <vector>

#include "kvd/ctl/doctor/diagnosis.hpp"

namespace kvd::ctl::doctor {

/// Why cached blocks do not go to disk, or to remote servers. `cache` and `remote` are the
/// documents of /v1/cache and /v1/remote; what is none, or an older kvd's, tells nothing. Pure.
[[nodiscard]] std::vector<Finding> findings_of_tiers(std::string_view cache,
                                                     std::string_view remote);

}  // namespace kvd::ctl::doctor
