#pragma once

#include <optional>
#include <vector>

#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {

/// What one engine is sent, and the goals of its requests where they are not the setting's.
struct EngineWorkload {
  Workload requests;
  std::optional<Seconds> ttft_slo;
  std::optional<Seconds> tbt_slo;
  std::optional<Seconds> tpot_slo;
};

/// All requests in order of time, each with the index of its engine.
[[nodiscard]] Workload merged(const std::vector<EngineWorkload>& parts);

}  // namespace kvd::sim
