#include "tests/lab/figures/lab.hpp"

#include <ostream>
#include <sstream>
#include <vector>

#include "kvd/sim/workload/announce.hpp"
#include "kvd/sim/world/configuration.hpp"

namespace kvd::sim {
namespace {

/// Everything that a trial's outcome depends on.
std::string key_of(const Trial& trial) {
  const auto& options = trial.options;
  std::ostringstream key;
  key.precision(17);
  key << trial.profile << '|' << trial.policy << '|' << trial.workload << '|' << trial.variant
      << '|' << trial.max_tokens << '|' << options.rate.value_or(-1) << '|'
      << options.duration.value_or(Seconds(-1)).count() << '|' << options.requests.value_or(0)
      << '|' << options.cv.value_or(-1) << '|' << trial.slo.ttft.count() << '|'
      << trial.slo.tbt.count() << '|' << trial.slo.tpot.count();
  return key.str();
}

}  // namespace

Result<RunResult> Lab::play(const Trial& trial, std::uint64_t seed) {
  ++trials_;
  WorkloadOptions options = trial.options;
  options.seed = seed;
  Setting setting;
  KVD_ASSIGN_OR_RETURN(Profile profile, load_profile(trial.profile));
  KVD_ASSIGN_OR_RETURN(setting.policy, policy_named(trial.policy));
  KVD_ASSIGN_OR_RETURN(setting.workload, make_workload(trial.workload, options));
  setting.engines.push_back({std::move(profile), 1, Bytes(0)});
  setting.slo = trial.slo;
  if (trial.adjust) trial.adjust(setting);
  std::vector<Tokens> contexts;
  for (std::size_t i = 0; i < setting.engines.size(); ++i) {
    KVD_ASSIGN_OR_RETURN(const Tokens context, context_of(setting, i));
    contexts.push_back(context);
  }
  KVD_TRY(announce_lengths(setting.workload, trial.max_tokens, seed, contexts));
  return run(setting);
}

Result<Summary> Lab::measure(const Trial& trial) {
  ++trials_;
  const std::string key = key_of(trial);
  auto found = known_.find(key);
  if (found == known_.end()) {
    std::vector<Metrics> runs;
    for (int s = 0; s < seeds_; ++s) {
      const std::uint64_t seed = first_seed_ + static_cast<std::uint64_t>(s);
      KVD_ASSIGN_OR_RETURN(const RunResult result, play(trial, seed));
      runs.push_back(sim::measure(result));
    }
    found = known_.emplace(key, summarize(trial.policy, runs)).first;
  }
  refused_ += found->second.mean.refused;
  return found->second;
}

void Lab::tell(const std::string& what, std::size_t done, std::size_t all) {
  if (progress_ == nullptr) return;
  *progress_ << '\r' << what << ' ' << done << '/' << all << (done == all ? "\033[K\r" : "")
             << std::flush;
}

}  // namespace kvd::sim
