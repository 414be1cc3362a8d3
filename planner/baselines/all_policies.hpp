#pragma once

#include "planner/policy/catalogue.hpp"

namespace kvd::planner {

/// Knows how long each answer will be, so no daemon can run it.
inline constexpr std::string_view kOraclePolicy = "sjf_oracle";

/// What a daemon can run, and besides it the published policies that it is compared with. NAME and
/// NAME+guards (guarded.hpp) for each that rotates or admits.
/// Source: the header of each.
[[nodiscard]] const Catalogue& all_policies();

}  // namespace kvd::planner
