#include "tests/lab/bench/serve_node.hpp"

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/support/free_port.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::bench {
namespace {

using nlohmann::json;

[[noreturn]] void give_up(const std::string& what, const std::string& log) {
  std::fprintf(stderr, "kvd-bench: %s\n%s\n", what.c_str(), log.c_str());
  std::exit(1);
}

std::string toml_of(const core::Tuning& tuning) {
  const auto table = [](const char* name, const std::string& policy) {
    return std::string("[") + name + "]\npolicy = \"" + policy + "\"\n";
  };
  const core::Slo& slo = tuning.slo.at("default");
  const auto goal = [](const char* name, Nanoseconds value) {
    return std::string(name) + " = \"" + std::to_string(value.count()) + "ns\"\n";
  };
  return table("rotation", tuning.rotation.policy) + table("placement", tuning.placement.policy) +
         table("admission", tuning.admission.policy) + "[slo.default]\n" + goal("ttft", slo.ttft) +
         goal("tbt", slo.tbt) + goal("tpot", slo.tpot);
}

}  // namespace

ServeNode::Engine::Engine(const std::string& endpoint, const ServeStage& stage)
    : port_(test::free_port()),
      process_({{test::built_program("kvd-engine"), "--random", stage.model, "--port",
                 std::to_string(port_), "--threads", "1", "--max-requests", "1024",
                 "--layers-per-block", std::to_string(stage.layers_per_block), "--iteration-ms",
                 std::to_string(stage.iteration_ms), "--endpoint", endpoint},
                {}}) {
  if (!process_.wait_for_line("ready: ")) give_up("no engine", process_.errors());
}

json ServeNode::Engine::health() const {
  const std::string answer = admin::http_exchange(
      port_, "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
  const auto at = answer.find("\r\n\r\n");
  return at == std::string::npos ? json() : json::parse(answer.substr(at + 4));
}

ServeNode::ServeNode(const ServeStage& stage, const core::Tuning& tuning)
    : daemon_(folder_, {.hbm = stage.hbm,
                        .dram = stage.dram,
                        .bandwidth = stage.bandwidth,
                        .extra = toml_of(tuning)}) {
  if (!daemon_.wait_ready()) give_up("no daemon", daemon_.log());
  for (std::uint32_t i = 0; i < stage.engines; ++i) {
    engines_.push_back(std::make_unique<Engine>(daemon_.endpoint(), stage));
  }
}

json ServeNode::document(const std::string& path) const {
  const test::HttpAnswer answer = daemon_.get(path);
  if (answer.status != 200) give_up("no answer to GET " + path + ": " + answer.body, daemon_.log());
  return json::parse(answer.body);
}

double ServeNode::control_cpu_s() const {
  const std::string pid = std::to_string(daemon_.pid());
  std::ifstream file("/proc/" + pid + "/task/" + pid + "/schedstat");
  double nanoseconds = 0;
  file >> nanoseconds;
  return nanoseconds * 1e-9;
}

void ServeNode::account(ServeRun& run) const {
  const json counters = document("/v1/status").at("counters");
  run.steps += counters.at("steps").get<std::uint64_t>();
  run.rotations_in += counters.at("rotations_in").get<std::uint64_t>();
  run.rotations_out += counters.at("rotations_out").get<std::uint64_t>();
  run.bytes_in += counters.at("copy_bytes").at("h2d").get<double>();
  run.bytes_out += counters.at("copy_bytes").at("d2h").get<double>();
  run.raw_ttft_met += counters.at("ttft").at("met").get<std::uint64_t>();
  run.raw_ttft_missed += counters.at("ttft").at("missed").get<std::uint64_t>();
  run.raw_tbt_met += counters.at("tbt").at("met").get<std::uint64_t>();
  run.raw_tbt_missed += counters.at("tbt").at("missed").get<std::uint64_t>();
  for (const auto& engine : engines_) {
    const json health = engine->health();
    run.iterations += health.at("iterations").get<std::uint64_t>();
    run.waited += health.at("waited").get<std::uint64_t>();
    run.waiting_s += health.at("waiting_s").get<double>();
    run.iterating_s += health.at("iterating_s").get<double>();
  }
}

}  // namespace kvd::bench
