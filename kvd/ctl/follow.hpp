#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"

namespace kvd::ctl {

/// What is new in each document of /v1/events, as lines.
/// Owner:  one thread.
class EventFollower {
 public:
  explicit EventFollower(bool as_json) : as_json_(as_json) {}

  /// The events that no document before had, one a line, oldest first; where some are lost because
  /// more happened than kvd keeps, a line says how many. After a restart of kvd, whose numbers
  /// begin anew, all of them. As JSON: an object a line. Errors: Internal when it is not the JSON
  /// that this knows.
  [[nodiscard]] Result<std::string> take(std::string_view document);

 private:
  const bool as_json_;
  bool begun_ = false;
  std::uint64_t last_ = 0;  ///< number of the event shown last
};

}  // namespace kvd::ctl
