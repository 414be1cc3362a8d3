#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ipc/vocabulary/result.hpp"

namespace kvd::sim {

/// One `key = value # comment` of a TOML document. The key includes its table: "link.h2d_bytes_s".
struct TomlEntry {
  std::string key;
  std::variant<double, bool, std::string> value;
  std::string comment;  ///< the comment on the same line, without '#'
  std::size_t line = 0;
};

/// The values of a TOML document in their order, with the comments that say where a figure comes
/// from. Errors: those of parse_toml(); InvalidArgument with name and line for a value that is
/// no finite number, true, false or string.
[[nodiscard]] Result<std::vector<TomlEntry>> read_toml(std::string_view text,
                                                       const std::string& name);

/// `text` as a basic string with its quotes.
[[nodiscard]] std::string toml_string(std::string_view text);

}  // namespace kvd::sim
