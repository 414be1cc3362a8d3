#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ipc/vocabulary/result.hpp"

namespace kvd::sim {

/// One `key = value  # comment` of a TOML document. The key includes the table it stands in:
/// "link.h2d_bytes_s".
struct TomlEntry {
  std::string key;
  std::variant<double, bool, std::string> value;
  std::string comment;  ///< on the same line, without '#'
  std::size_t line = 0;
};

/// Reads the part of TOML 1.0 that profiles use: tables, bare keys, basic strings on one line,
/// floats and decimal integers, true and false, comments. Unlike toml++ it keeps the comments,
/// which say where a figure comes from. Errors: InvalidArgument with name and line for anything
/// else, and for a key given twice.
[[nodiscard]] Result<std::vector<TomlEntry>> read_toml(std::string_view text,
                                                       const std::string& name);

/// `text` as a basic string with its quotes.
[[nodiscard]] std::string toml_string(std::string_view text);

}  // namespace kvd::sim
