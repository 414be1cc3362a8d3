#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/lint/source_tree.hpp"

namespace kvd::lint {

/// Lines that hold a comment, in percent of those that are not blank.
int comment_percent(const std::string& text);

/// The headers that a stranger reads first: the installed ones, and those that CONTRIBUTING's table
/// "I want to change" starts reading at. Relative to `root`, sorted.
std::vector<std::filesystem::path> first_headers(const std::filesystem::path& root);

/// Checks that a quarter of each of these headers is comments: units, errors, threads, why.
std::vector<Finding> check_headers_are_explained(const std::filesystem::path& root);

/// Checks that no comment or docstring in the files, relative to `root`, opens with words that only
/// a fragment starts with, such as "Those" or "So".
std::vector<Finding> check_comments_are_sentences(const std::filesystem::path& root,
                                                  const std::vector<std::filesystem::path>& files);

}  // namespace kvd::lint
