#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/lint/source_tree.hpp"

namespace kvd::lint {

/// Checks that every tests/**/…_test.cpp and …_test.py is named in the CMakeLists.txt of its folder
/// or of a folder above it: a test nobody builds passes for ever.
std::vector<Finding> check_tests_are_listed(const std::filesystem::path& root);

/// Checks that kvd/core compares no policy's name: what it must know of a policy is a trait of it
/// (RotationTraits, AdmissionTraits, PlacementTraits), so that a new policy touches no file of
/// core.
std::vector<Finding> check_core_asks_for_traits(const std::filesystem::path& root);

constexpr std::size_t kMostFiles = 25;

/// Checks that no folder but the laboratory's (tests/lab) has more sources, C++ and Python, than a
/// reader takes in.
std::vector<Finding> check_folder_sizes(const std::filesystem::path& root);

/// Checks that each of the files, relative to `root`, is text of at most 512 KiB: what is built,
/// fetched or measured does not belong into the repository.
std::vector<Finding> check_files_are_text(const std::filesystem::path& root,
                                          const std::vector<std::filesystem::path>& files);

}  // namespace kvd::lint
