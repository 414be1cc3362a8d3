#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kvd/ctl/table.hpp"

/// Values of the admin interface's documents as text for a terminal.
namespace kvd::ctl::cells {

using Json = nlohmann::ordered_json;

/// Names come from engines: nothing in them may steer the terminal.
[[nodiscard]] inline std::string text(const Json& value) {
  std::string out = value.is_string() ? value.get<std::string>() : value.dump();
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  return out;
}
[[nodiscard]] inline std::string bytes(const Json& value) {
  return bytes_text(value.get<double>());
}
[[nodiscard]] inline std::string seconds(const Json& value) {
  return seconds_text(value.get<double>());
}

}  // namespace kvd::ctl::cells
