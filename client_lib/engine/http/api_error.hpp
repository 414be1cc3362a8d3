#pragma once

#include <string>

#include "ipc/vocabulary/result.hpp"

namespace kvd::engine {

/// An answer that is no success, in the terms of OpenAI's API.
struct ApiError {
  int status = 400;
  std::string message;
  std::string param = {};  ///< the field at fault; may be none
  std::string type = "invalid_request_error";
  std::string code = {};

  /// {"error": {"message", "type", "param", "code"}}
  [[nodiscard]] std::string json() const;
};

/// What an error of the engine is to a user of the API.
[[nodiscard]] ApiError api_error(const Error& error);

}  // namespace kvd::engine
