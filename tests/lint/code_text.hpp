#pragma once

#include <string>

namespace kvd::lint {

/// The text of a C++ file with comments, literals, preprocessor lines and attributes made blank;
/// everything else stays in its place.
std::string only_code(const std::string& text);

}  // namespace kvd::lint
