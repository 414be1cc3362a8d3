#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvd::admin {

/// Keys keep the order in which they were written, so that documents read as documented.
using Json = nlohmann::ordered_json;

/// The value as text. Bytes that are no UTF-8 (an engine names itself) become U+FFFD.
[[nodiscard]] inline std::string to_text(const Json& document) {
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvd::admin
