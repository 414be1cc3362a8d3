#pragma once

#include <filesystem>
#include <vector>

#include "tests/lint/source_tree.hpp"

namespace kvd::lint {

/// Checks that what comments and documents cite can be read by whoever has the repository: no text
/// outside it (by the names such texts had), and of DESIGN.md and MODEL.md only parts that are
/// there. `DESIGN.md "Words"` cites the heading "Words", or a paragraph that starts with it in
/// bold. Errors: a finding for each line that breaks the rule.
std::vector<Finding> check_citations(const std::filesystem::path& root);

}  // namespace kvd::lint
