#include <algorithm>
#include <random>

#include "tests/lab/bench/benefit_run.hpp"

namespace kvd::bench {
namespace {

bool busy(const BenefitStage& stage, std::uint64_t seed, std::uint32_t engine, double at_s) {
  const auto phase = static_cast<std::uint64_t>(at_s / stage.phase_s);
  return (phase + seed) % 2 == engine;
}

}  // namespace

std::vector<EngineRequest> bursts(const BenefitStage& stage, std::uint64_t seed) {
  std::vector<EngineRequest> out;
  for (std::uint32_t engine = 0; engine < 2; ++engine) {
    // Draws arrivals at the busy rate and leaves some out, so that a change of phase cuts no gap
    // short.
    ServeStage fast = stage.serve;
    fast.rate = stage.busy_rate;
    std::mt19937_64 random(2 * seed + engine);
    const double keep = stage.quiet_rate / stage.busy_rate;
    for (ServeRequest& request : arrivals(fast, 2 * seed + engine, stage.goals)) {
      const bool kept = std::uniform_real_distribution<double>()(random) < keep;
      if (kept || busy(stage, seed, engine, request.at_s)) {
        out.push_back({engine, std::move(request)});
      }
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const EngineRequest& a, const EngineRequest& b) {
    return a.request.at_s < b.request.at_s;
  });
  return out;
}

}  // namespace kvd::bench
