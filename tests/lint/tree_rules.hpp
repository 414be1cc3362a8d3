#pragma once

#include <filesystem>
#include <vector>

#include "tests/lint/source_tree.hpp"

namespace kvd::lint {

/// Checks that every tests/**/…_test.cpp is named in the CMakeLists.txt of its folder or of a
/// folder above it: a test nobody builds passes for ever.
std::vector<Finding> check_tests_are_listed(const std::filesystem::path& root);

}  // namespace kvd::lint
