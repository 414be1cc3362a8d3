#include "tests/lab/bench/serve_run.hpp"

#include <algorithm>
#include <random>

#include "ipc/vocabulary/check.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/serve_node.hpp"

namespace kvd::bench {
namespace {

constexpr double kServePatience_s = 120;  // after the last arrival

}  // namespace

Goals unloaded_goals(const ServeStage& stage) {
  constexpr int kRequests = 7;
  ServeStage alone = stage;
  alone.engines = 1;
  alone.bandwidth = "unlimited";
  const ServeNode node(alone, core::Tuning{});
  std::vector<double> ttft, tbt;
  std::mt19937_64 random(1);
  for (int i = 0; i < kRequests; ++i) {
    ServeRequest request{.port = node.port(0)};
    request.prompt.resize((stage.prompt_min + stage.prompt_max) / 2);
    for (std::uint32_t& token : request.prompt) token = static_cast<std::uint32_t>(random() % 256);
    request.new_tokens = (stage.new_min + stage.new_max) / 2;
    const ServeAnswer answer = serve_load({&request, 1}, kServePatience_s).front();
    KVD_CHECK(answer.token_s.size() >= 2, "an unloaded engine makes tokens");
    ttft.push_back(answer.token_s.front() - answer.sent_s);
    for (std::size_t t = 1; t < answer.token_s.size(); ++t) {
      tbt.push_back(answer.token_s[t] - answer.token_s[t - 1]);
    }
  }
  return {median(ttft) * stage.ttft_multiple, median(tbt) * stage.tbt_multiple};
}

ServeRun serve_once(const ServeStage& stage, const core::Tuning& tuning,
                    const std::vector<ServeRequest>& requests) {
  const ServeNode node(stage, tuning);
  std::vector<ServeRequest> addressed = requests;
  for (std::size_t i = 0; i < addressed.size(); ++i) {
    addressed[i].port = node.port(i % stage.engines);
  }
  const double cpu_before = node.control_cpu_s();
  ServeRun run;
  run.answers = serve_load(addressed, stage.seconds + kServePatience_s);
  run.control_cpu_s = node.control_cpu_s() - cpu_before;
  for (const ServeAnswer& answer : run.answers) {
    if (!answer.token_s.empty()) run.wall_s = std::max(run.wall_s, answer.token_s.back());
  }
  node.account(run);
  return run;
}

}  // namespace kvd::bench
