#pragma once

#include <filesystem>
#include <vector>

#include "tests/lint/source_tree.hpp"

namespace kvd::lint {

/// Checks that the parts of kvd/store and of kvd/core stand in an order: a file of theirs includes
/// files of its own room only if these stand above it in the table of part_order.cpp. A part can
/// call only what it includes, so calls go upwards, too, and there is no cycle.
/// Errors:  a file of these rooms that the table does not name is a finding
std::vector<Finding> check_part_order(const std::filesystem::path& root);

}  // namespace kvd::lint
