#include "tests/lab/figures/layerkv_setting.hpp"

namespace kvd::sim::figures {
namespace {

Trial trial_of(const std::string& profile, const std::string& policy, const std::string& workload,
               double rate) {
  Trial trial;
  trial.profile = profile;
  trial.policy = policy;
  trial.workload = workload;
  trial.options.rate = rate;
  trial.slo = {.ttft = std::chrono::seconds(3),
               .tbt = std::chrono::milliseconds(200),
               .tpot = std::chrono::milliseconds(200)};
  return trial;
}

}  // namespace

Trial layerkv_trial(const std::string& profile, const std::string& policy, double rate) {
  Trial trial = trial_of(profile, policy, "gen:sharegpt", rate);
  trial.options.duration = Seconds(120);
  return trial;
}

Trial layerkv_fixed_trial(const std::string& profile, const std::string& policy,
                          const std::string& workload) {
  Trial trial = trial_of(profile, policy, workload, 1);
  trial.options.requests = 100;
  return trial;
}

}  // namespace kvd::sim::figures
