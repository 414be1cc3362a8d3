#pragma once

#include <string>
#include <vector>

#include "kvd/sim/chart/axis.hpp"

namespace kvd::sim::figures {

/// Prints a share as "12.3 %".
[[nodiscard]] std::string percent(double share);
/// Prints a difference of shares as "+4.2 points".
[[nodiscard]] std::string points(double difference);
/// Joins names as "a, b and c".
[[nodiscard]] std::string listed(const std::vector<std::string>& names);

}  // namespace kvd::sim::figures
