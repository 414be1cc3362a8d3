#include <random>

#include "tests/lab/bench/serve_run.hpp"

namespace kvd::bench {

std::vector<ServeRequest> arrivals(const ServeStage& stage, std::uint64_t seed,
                                   const Goals& goals) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> gap(stage.rate);
  const auto between = [&](std::uint32_t low, std::uint32_t high) {
    return low + static_cast<std::uint32_t>(random() % (high - low + 1));
  };
  std::vector<ServeRequest> out;
  for (double at = gap(random); at < stage.seconds; at += gap(random)) {
    ServeRequest request{.at_s = at, .ttft_s = goals.ttft_s, .tbt_s = goals.tbt_s};
    request.prompt.resize(between(stage.prompt_min, stage.prompt_max));
    for (std::uint32_t& token : request.prompt) token = static_cast<std::uint32_t>(random() % 256);
    request.new_tokens = between(stage.new_min, stage.new_max);
    out.push_back(std::move(request));
  }
  return out;
}

}  // namespace kvd::bench
