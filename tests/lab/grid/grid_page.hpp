#pragma once

#include "tests/lab/grid/verdict.hpp"
#include "tests/lab/report/page.hpp"

namespace kvd::sim::grid {

/// The text of a table row for a policy that is behind: "ttft_attainment 0.6 (0.9), …".
[[nodiscard]] std::string cause_text(const nlohmann::ordered_json& cause);

/// How far the policy leads in each cell and by load, and where it is behind. Precondition:
/// `played` is in the order of the verdict's cells, of which there is at least one.
[[nodiscard]] Page page_of(const Verdict& verdict, const std::vector<PlayedCell>& played,
                           const std::string& policy, double tolerance);

}  // namespace kvd::sim::grid
