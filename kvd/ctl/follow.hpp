#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "ipc/vocabulary/result.hpp"
#include "kvd/ctl/choice.hpp"

namespace kvd::ctl {

/// Turns what is new in each document of /v1/events into lines. Owner: one thread.
class EventFollower {
 public:
  explicit EventFollower(bool as_json, Choice choice = {})
      : as_json_(as_json), choice_(std::move(choice)) {}

  /// The chosen events that no earlier document had, one a line, oldest first. Where events are
  /// lost because more happened than kvd keeps, a line says how many. After a restart of kvd, whose
  /// numbers begin anew, all events. As JSON, one object a line. Errors: Internal when it is not
  /// the JSON that this knows.
  [[nodiscard]] Result<std::string> take(std::string_view document);

 private:
  const bool as_json_;
  const Choice choice_;
  bool begun_ = false;
  std::uint64_t last_ = 0;  ///< number of the event shown last
};

}  // namespace kvd::ctl
