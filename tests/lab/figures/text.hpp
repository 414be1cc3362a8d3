#pragma once

#include <string>
#include <vector>

#include "kvd/sim/chart/axis.hpp"

namespace kvd::sim::figures {

/// "12.3 %" of a share.
[[nodiscard]] std::string percent(double share);
/// "+4.2 points" of a difference of shares.
[[nodiscard]] std::string points(double difference);
/// "a, b and c".
[[nodiscard]] std::string listed(const std::vector<std::string>& names);

}  // namespace kvd::sim::figures
