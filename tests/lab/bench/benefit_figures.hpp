#pragma once

#include <string>

#include "tests/lab/bench/benefit_run.hpp"
#include "tests/lab/bench/serve_figures.hpp"

namespace kvd::bench {

/// The same requests on two halves of the memory and on one kvd, with a run for each seed.
struct BenefitRuns {
  PolicyRuns halves{"halves", {}};
  PolicyRuns kvd{"kvd", {}};
};

/// How many more requests met their SLO on one kvd than on the halves: the mean over the seeds.
[[nodiscard]] double more_within_slo(const BenefitRuns& runs);
/// Whether with each seed one kvd had at least as many requests within their SLO as the halves.
[[nodiscard]] bool never_fewer(const BenefitRuns& runs);
/// Whether iterations took so much longer than their least time that the figures say more about a
/// busy machine than about kvd: a fifth, on average over either side's runs. False where no least
/// time is set.
[[nodiscard]] bool machine_was_busy(const BenefitStage& stage, const BenefitRuns& runs);

/// {"halves": {...}, "kvd": {...}, "load": {...}, ...}: requests are summed over the seeds, times
/// (seconds) and rates are means over the seeds.
[[nodiscard]] std::string benefit_json(const BenefitStage& stage, const BenefitRuns& runs);
/// The table, and the seeds as bars, for a terminal.
[[nodiscard]] std::string benefit_text(const BenefitStage& stage, const BenefitRuns& runs);
/// The same as a picture.
[[nodiscard]] std::string benefit_svg(const BenefitStage& stage, const BenefitRuns& runs);

}  // namespace kvd::bench
