#pragma once

#include <string_view>

namespace kvd::http {

/// The phrase that goes with a status code in a status line: "Not Found" for 404.
[[nodiscard]] std::string_view reason_of(int status);

}  // namespace kvd::http
