#include "kvd/sim/figures/orbitflow_setting.hpp"

#include <algorithm>

namespace kvd::sim::figures {
namespace {

// Enough for a full batch and a queue behind it, few enough that a run takes seconds.
constexpr std::size_t kRequests = 16;

Bytes token_bytes(const Profile& profile) {
  return profile.shape.bytes_per_token_per_layer * std::int64_t{profile.shape.layers};
}

}  // namespace

void shorten_to_hbm(Setting& setting) {
  const Profile& profile = setting.engines[0].profile;
  // A block less: the last one is begun, not filled.
  const auto most = static_cast<double>(profile.hbm / token_bytes(profile)) - 16;
  for (Arrival& arrival : setting.workload) {
    const auto total = static_cast<double>((arrival.prompt + arrival.output).value);
    if (total <= most) continue;
    const auto shorter = [&](Tokens tokens) {
      return Tokens(std::max<std::int64_t>(
          1, static_cast<std::int64_t>(static_cast<double>(tokens.value) * most / total)));
    };
    arrival.prompt = shorter(arrival.prompt);
    arrival.output = shorter(arrival.output);
  }
}

core::Slo orbitflow_slo(double scale) {
  const auto profile = load_profile(kA5000);
  KVD_CHECK(profile.ok(), "a preset does not read");
  const Batch full{.decoding = 4, .context_tokens = profile->hbm / token_bytes(*profile)};
  const Seconds goal = iteration_time(*profile, full) * scale;
  const auto slo = std::chrono::duration_cast<Nanoseconds>(goal);
  return {.ttft = std::chrono::hours(1), .tbt = slo, .tpot = slo};
}

Trial orbitflow_trial(const std::string& policy, double scale, const std::string& mix,
                      double rate) {
  Trial trial;
  trial.profile = kA5000;
  trial.policy = policy;
  trial.workload = "gen:" + mix;
  trial.options.rate = rate;
  trial.options.requests = kRequests;
  trial.slo = orbitflow_slo(scale);
  return trial;
}

}  // namespace kvd::sim::figures
