#pragma once

#include <string>

#include "tests/lab/bench/benefit_run.hpp"
#include "tests/lab/bench/serve_figures.hpp"

namespace kvd::bench {

/// The same requests on two halves of the memory and on one kvd, a run a seed.
struct BenefitRuns {
  PolicyRuns halves{"halves", {}};
  PolicyRuns kvd{"kvd", {}};
};

/// Requests within their SLO that one kvd had more than the halves: the mean of the seeds.
[[nodiscard]] double more_within_slo(const BenefitRuns& runs);
/// Whether one kvd had at least as many within their SLO as the halves, with each seed.
[[nodiscard]] bool never_fewer(const BenefitRuns& runs);
/// Whether iterations took so much longer than their least time that the figures say more of a busy
/// machine than of kvd: a fifth, on the mean of either side's runs. Not where no least time is set.
[[nodiscard]] bool machine_was_busy(const BenefitStage& stage, const BenefitRuns& runs);

/// {"halves": {...}, "kvd": {...}, "load": {...}, ...}: requests are summed over the seeds, times
/// (seconds) and rates are means of the seeds' values.
[[nodiscard]] std::string benefit_json(const BenefitStage& stage, const BenefitRuns& runs);
/// The table, and the seeds as bars, for a terminal.
[[nodiscard]] std::string benefit_text(const BenefitStage& stage, const BenefitRuns& runs);
/// The same as a picture.
[[nodiscard]] std::string benefit_svg(const BenefitStage& stage, const BenefitRuns& runs);

}  // namespace kvd::bench
