#pragma once

#include <string>
#include <vector>

#include "kvd/sim/run/metrics.hpp"

namespace kvd::sim {

/// Text in columns. The first row is the head; the first column is aligned left, the others right.
[[nodiscard]] std::string columns(const std::vector<std::vector<std::string>>& rows);

/// A figure in at most four digits.
[[nodiscard]] std::string figure_text(double value);

/// Two tables: first which requests were served in time, then times in seconds and what the machine
/// did. There is a row for each policy (or for whatever `head` says). With several seeds the least
/// and the greatest stand below each row. The first table shows the parts, too.
[[nodiscard]] std::string comparison_table(const std::vector<Summary>& policies,
                                           const std::string& head = "policy");

/// The first of these tables.
[[nodiscard]] std::string goals_table(const std::vector<Summary>& rows, const std::string& head);

/// Every figure of one run, one on each line.
[[nodiscard]] std::string metrics_table(const Metrics& metrics);

}  // namespace kvd::sim
