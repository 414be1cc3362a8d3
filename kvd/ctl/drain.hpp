#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"

namespace kvd::ctl {

/// What `kvdctl drain` is asked to do: whom to take out of service, or to put back.
struct DrainCall {
  std::string who;                   ///< "node", or an engine's number; empty: only show
  std::optional<double> deadline_s;  ///< none: what runs goes on to its end
  bool cancel = false;
  bool to_remote = false;  ///< what the node has cached goes to the remote servers
  bool wait = false;       ///< go on and print until nothing is left
};

/// The merge-patch of /v1/drain that does it. Errors: InvalidArgument for a name that is neither.
[[nodiscard]] Result<std::string> drain_patch(const DrainCall& call);

/// How far a drain is: that of an engine, of the node, or of all that is out of service.
struct DrainProgress {
  std::string line;      ///< for a person
  bool drained = false;  ///< nothing is left, or nobody is out of service
  bool late = false;     ///< the deadline is past, and something is left
  bool lost = false;     ///< it is drained, and some block could not be written
};
/// Read from a document of /v1/drain. Errors: Internal when it is not the JSON that this knows.
[[nodiscard]] Result<DrainProgress> drain_progress(const std::string& who,
                                                   std::string_view document);

}  // namespace kvd::ctl
