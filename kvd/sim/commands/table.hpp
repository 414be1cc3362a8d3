#pragma once

#include <string>
#include <vector>

#include "kvd/sim/run/metrics.hpp"

namespace kvd::sim {

/// Text in columns: the first row is the head, the first column stands left, the rest right.
[[nodiscard]] std::string columns(const std::vector<std::vector<std::string>>& rows);

/// A figure in at most four digits.
[[nodiscard]] std::string figure_text(double value);

/// Two tables: who was served in time, then seconds and what the machine did. A row a policy (or
/// whatever `head` says), with several seeds the least and the greatest below each; in the first
/// table its parts, too.
[[nodiscard]] std::string comparison_table(const std::vector<Summary>& policies,
                                           const std::string& head = "policy");

/// The first of these tables.
[[nodiscard]] std::string goals_table(const std::vector<Summary>& rows, const std::string& head);

/// Every figure of one run, a line each.
[[nodiscard]] std::string metrics_table(const Metrics& metrics);

}  // namespace kvd::sim
