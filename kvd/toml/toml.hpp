#pragma once

#include <toml++/toml.h>

#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"

namespace kvd {

/// Parses a document of TOML 1.0 that a stranger may have written. `name` stands for it in messages
/// and in the sources of its nodes. Errors: InvalidArgument, with name and line, for what is not
/// TOML; and for names of so many parts that the parser's stack would grow without bound.
[[nodiscard]] Result<toml::table> parse_toml(std::string_view text, const std::string& name);

}  // namespace kvd
