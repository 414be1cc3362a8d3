#pragma once

#include <iosfwd>
#include <span>
#include <string_view>

namespace kvd::planner {

/// Runs kvd-plan with these arguments (without the program's name) and returns its exit status.
[[nodiscard]] int run_kvd_plan(std::span<const std::string_view> arguments, std::istream& in,
                               std::ostream& out, std::ostream& err);

}  // namespace kvd::planner
