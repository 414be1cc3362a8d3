#pragma once

#include <string>
#include <vector>

#include "kvd/sim/world/result.hpp"

namespace kvd::sim {

/// Requests of a run that belong together.
struct RequestPart {
  std::string name;  ///< "engine 2"; "ttft 2 s, tbt 0.06 s"
  RunResult result;  ///< what the machine did is empty except for the duration
};

/// Divides a run's requests by engine, then by goals. A run with only one engine, or only one goal,
/// is not divided by it.
[[nodiscard]] std::vector<RequestPart> parts_of(const RunResult& result);

/// Divides a run's requests by goals alone, the tightest first; one part where all goals are equal.
[[nodiscard]] std::vector<RequestPart> parts_by_goals(const RunResult& result);

/// CSV with a head and a line for each request.
[[nodiscard]] std::string requests_csv(const RunResult& result);

}  // namespace kvd::sim
