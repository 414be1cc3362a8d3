#pragma once

#include <string>
#include <vector>

#include "kvd/sim/world/result.hpp"

namespace kvd::sim {

/// Requests of a run that belong together.
struct RequestPart {
  std::string name;  ///< "engine 2"; "ttft 2 s, tbt 0.06 s"
  RunResult result;  ///< of what the machine did, only the duration
};

/// A run's requests by engine, then by their goals; whatever has only one of them is not divided
/// by it.
[[nodiscard]] std::vector<RequestPart> parts_of(const RunResult& result);

/// By their goals alone, the tightest first; one part where all have the same.
[[nodiscard]] std::vector<RequestPart> parts_by_goals(const RunResult& result);

/// A head, and a line a request: CSV.
[[nodiscard]] std::string requests_csv(const RunResult& result);

}  // namespace kvd::sim
