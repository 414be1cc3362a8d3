#pragma once

#include <string>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::ctl {

/// One question to the admin interface.
struct RestRequest {
  std::string url = "http://127.0.0.1:8470";
  std::string method = "GET";
  std::string path;
  std::string token;  ///< "": none sent
  std::string body;   ///< a JSON merge-patch; "" with GET
  Nanoseconds timeout{std::chrono::seconds(5)};
};

struct RestAnswer {
  int status = 0;
  std::string body;
};

/// Errors: InvalidArgument for a malformed URL; Unavailable when nobody answers in time. Any HTTP
/// status is an answer.
[[nodiscard]] Result<RestAnswer> ask(const RestRequest& request);

}  // namespace kvd::ctl
