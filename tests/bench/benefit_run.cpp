#include "tests/bench/benefit_run.hpp"

#include <algorithm>
#include <memory>

#include "tests/bench/serve_node.hpp"

namespace kvd::bench {
namespace {

constexpr std::uint32_t kEngines = 2;
constexpr double kBenefitPatience_s = 30;  // after the last arrival

std::string mib(std::uint32_t count) { return std::to_string(count) + "MiB"; }

}  // namespace

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
