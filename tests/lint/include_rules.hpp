#pragma once

#include <filesystem>
#include <vector>

#include "tests/lint/source_tree.hpp"

namespace kvd::lint {

/// Checks every #include under `root` against the tables in include_rules.cpp: which room may
/// include which other room, which folder of a large room may include which other folder, and which
/// rooms may include which third-party library.
/// Source:  the arrows drawn in CONTRIBUTING.md ("Rooms and arrows")
/// Errors:  a quoted include that names no file of the tree and no listed library is a finding too
std::vector<Finding> check_includes(const std::filesystem::path& root);

/// Checks that no parts of kvd/ but the daemon's include one another in a circle. A part can call
/// only what it includes, so there is no circle of calls either.
std::vector<Finding> check_circles(const std::filesystem::path& root);

/// Checks that the installed headers (client_lib/include) include nothing but the standard library
/// and one another: a user compiles against them with none of kvd's dependencies installed.
std::vector<Finding> check_public_headers(const std::filesystem::path& root);

}  // namespace kvd::lint
