#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvd/sim/run/metrics.hpp"

namespace kvd::sim {

/// What `compare` and `reproduce` print: {"figure", "unit", "policies": [{"policy", every metric by
/// its name, "spread": {name: [least, greatest]}, "parts": [{"part", the metrics of its requests,
/// "spread"}]}]}. There is no "parts" where there is one engine and one goal.
[[nodiscard]] nlohmann::ordered_json comparison_json(const std::string& figure,
                                                     const std::string& unit,
                                                     const std::vector<Summary>& policies);

}  // namespace kvd::sim
