#include <algorithm>
#include <cmath>

#include "kvd/daemon/config/config.hpp"
#include "tests/lab/bench/benefit_run.hpp"

namespace kvd::bench {

BenefitStage slowed(BenefitStage stage, double pace) {
  stage.pace *= pace;
  stage.serve.iteration_ms *= pace;
  stage.serve.seconds *= pace;
  stage.phase_s *= pace;
  stage.busy_rate /= pace;
  stage.quiet_rate /= pace;
  stage.goals.ttft_s *= pace;
  stage.goals.tbt_s *= pace;
  if (const auto link = daemon::parse_bytes(stage.serve.bandwidth); link.ok() && pace != 1) {
    stage.serve.bandwidth =
        std::to_string(std::llround(static_cast<double>(link->value) / pace / 1024)) + "KiB";
  }
  return stage;
}

double pace_for(const BenefitStage& stage, double iteration_s) {
  constexpr double kKept = 1.05, kSpare = 1.15, kMost = 1.6;
  if (stage.serve.iteration_ms <= 0) return 1;
  const double took = iteration_s * 1000 / stage.serve.iteration_ms;
  return took <= kKept ? 1 : std::min(kMost, took * kSpare);
}

}  // namespace kvd::bench
