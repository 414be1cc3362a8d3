#include "tests/lab/figures/superinfer_setting.hpp"

#include <sstream>

#include "kvd/sim/run/knee.hpp"

namespace kvd::sim::figures {

Trial superinfer_trial(const std::string& profile, const std::string& policy, double rate,
                       const RotaParameters& parameters) {
  Trial trial;
  trial.profile = profile;
  trial.policy = policy;
  trial.workload = "gen:sharegpt";
  trial.options.rate = rate;
  trial.options.duration = Seconds(120);
  trial.slo = {.ttft = std::chrono::seconds(5),
               .tbt = std::chrono::milliseconds(100),
               .tpot = std::chrono::milliseconds(100)};
  std::ostringstream variant;
  variant << "rota " << parameters.alpha << ' ' << parameters.beta_b << ' ' << parameters.beta_f
          << ' ' << parameters.blocks;
  trial.variant = variant.str();
  trial.adjust = [parameters](Setting& setting) {
    const auto& shape = setting.engines[0].profile.shape;
    setting.b_xfer = shape.slot_bytes() * std::int64_t{shape.groups()} * parameters.blocks;
    setting.alpha = parameters.alpha;
    setting.beta_b = parameters.beta_b;
    setting.beta_f = parameters.beta_f;
  };
  return trial;
}

Result<double> superinfer_knee(Lab& lab, const std::string& profile) {
  constexpr double kStart = 16;
  constexpr double kPrecision = 0.05;
  const auto attainment = [&](double rate) -> Result<double> {
    KVD_ASSIGN_OR_RETURN(const Summary summary,
                         lab.measure(superinfer_trial(profile, "fcfs", rate)));
    return summary.mean.ttft_attainment;
  };
  KVD_ASSIGN_OR_RETURN(const Knee knee, find_knee(attainment, kStart, 0.99, kPrecision));
  return knee.rate;
}

}  // namespace kvd::sim::figures
