#include "tests/lab/figures/orbitflow_setting.hpp"

#include <algorithm>

namespace kvd::sim::figures {
namespace {

// Enough that one request is not a sixteenth of an attainment, and few enough that a run takes
// seconds.
constexpr std::size_t kRequests = 40;

Bytes token_bytes(const Profile& profile) {
  return profile.shape.bytes_per_token_per_layer * std::int64_t{profile.shape.layers};
}

// OrbitFlow's traces carry a goal for each request: the time of a decode step over what the request
// alone holds at its end, by the fit that the traces were made with. Source: OrbitFlow's published
// code.
Seconds own_goal(const Arrival& arrival, double scale) {
  const auto tokens = static_cast<double>((arrival.prompt + arrival.output).value);
  return Seconds((1.001743e-6 * tokens + 0.0495196) * scale);
}

}  // namespace

void shorten_to_hbm(Setting& setting) {
  const Profile& profile = setting.engines[0].profile;
  // One block less: the last one is begun, not filled.
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
  trial.adjust = [scale](Setting& setting) {
    for (Arrival& arrival : setting.workload) {
      arrival.tbt_slo = arrival.tpot_slo = own_goal(arrival, scale);
    }
  };
  return trial;
}

}  // namespace kvd::sim::figures
