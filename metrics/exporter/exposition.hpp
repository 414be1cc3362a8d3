#pragma once

#include <string>
#include <vector>

#include "metrics/catalogue/sample.hpp"

namespace kvd::metrics {

/// The catalogue's families, filled with these samples, as Prometheus reads them: the text format
/// 0.0.4, made by prometheus-cpp. A series that no sample speaks of is there only at zero, so it
/// ends with the engine it spoke of.
[[nodiscard]] std::string exposition(const std::vector<Sample>& samples);

}  // namespace kvd::metrics
