#include "tests/lab/bench/benefit_run.hpp"

#include <algorithm>
#include <memory>

#include "tests/lab/bench/serve_figures.hpp"
#include "tests/lab/bench/serve_node.hpp"

namespace kvd::bench {
namespace {

constexpr std::uint32_t kEngines = 2;
constexpr double kBenefitPatience_s = 30;  // after the last arrival

std::string mib(std::uint32_t count) { return std::to_string(count) + "MiB"; }

}  // namespace

double pace_of_this_machine(const BenefitStage& stage) {
  if (stage.serve.iteration_ms <= 0) return 1;
  BenefitStage burst = stage;
  burst.serve.seconds = stage.phase_s;
  burst.quiet_rate = stage.busy_rate;
  const ServeRun run = run_on_pools(burst, 1, bursts(burst, 0));
  return pace_for(stage, value_of(figures_of(run, burst.goals), "iteration"));
}

ServeRun run_on_pools(const BenefitStage& stage, std::uint32_t pools,
                      const std::vector<EngineRequest>& requests) {
  ServeStage share = stage.serve;
  share.engines = kEngines / pools;
  share.hbm = mib(stage.hbm_mib / pools);
  share.dram = mib(stage.dram_mib / pools);
  std::vector<std::unique_ptr<ServeNode>> nodes;
  for (std::uint32_t i = 0; i < pools; ++i) {
    nodes.push_back(std::make_unique<ServeNode>(share, core::Tuning{}));
  }
  std::vector<ServeRequest> addressed;
  for (const EngineRequest& one : requests) {
    addressed.push_back(one.request);
    addressed.back().port = pools == 1 ? nodes[0]->port(one.engine) : nodes[one.engine]->port(0);
  }
  ServeRun run;
  run.answers = serve_load(addressed, stage.serve.seconds + kBenefitPatience_s);
  for (const ServeAnswer& answer : run.answers) {
    if (!answer.token_s.empty()) run.wall_s = std::max(run.wall_s, answer.token_s.back());
  }
  for (const auto& node : nodes) node->account(run);
  return run;
}

}  // namespace kvd::bench
