#include "tests/bench/serve_run.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/bench/bench.hpp"
#include "tests/engines/child_process.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::bench {
namespace {

using nlohmann::json;

constexpr double kPatience_s = 120;  // after the last arrival

[[noreturn]] void give_up(const std::string& what, const std::string& log) {
  std::fprintf(stderr, "kvd-bench serve: %s\n%s\n", what.c_str(), log.c_str());
  std::exit(1);
}

std::string policies_toml(const core::Tuning& tuning) {
  const auto table = [](const char* name, const std::string& policy) {
    return std::string("[") + name + "]\npolicy = \"" + policy + "\"\n";
  };
  return table("rotation", tuning.rotation.policy) + table("placement", tuning.placement.policy) +
         table("admission", tuning.admission.policy);
}

class Engine {
 public:
  Engine(const std::string& endpoint, const ServeStage& stage)
      : port_(admin::free_port()),
        process_(
            {{test::built_program("kvd-engine"), "--random", stage.model, "--port",
              std::to_string(port_), "--threads", "1", "--max-requests", "1024",
              "--layers-per-block", std::to_string(stage.layers_per_block), "--endpoint", endpoint},
             {}}) {
    if (!process_.wait_for_line("ready: ")) give_up("no engine", process_.errors());
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] json health() const {
    const std::string answer = admin::http_exchange(
        port_, "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    const auto at = answer.find("\r\n\r\n");
    return at == std::string::npos ? json() : json::parse(answer.substr(at + 4));
  }

 private:
  std::uint16_t port_;
  test::ChildProcess process_;
};

/// A daemon with its engines.
class Node {
 public:
  Node(const ServeStage& stage, const core::Tuning& tuning)
      : daemon_(folder_, {.hbm = stage.hbm,
                          .dram = stage.dram,
                          .bandwidth = stage.bandwidth,
                          .extra = policies_toml(tuning)}) {
    if (!daemon_.wait_ready()) give_up("no daemon", daemon_.log());
    for (std::uint32_t i = 0; i < stage.engines; ++i) {
      engines_.push_back(std::make_unique<Engine>(daemon_.endpoint(), stage));
    }
  }
  [[nodiscard]] std::uint16_t port(std::size_t engine) const { return engines_[engine]->port(); }

  /// CPU time of the thread that decides, which is the process's first.
  [[nodiscard]] double control_cpu_s() const {
    const std::string pid = std::to_string(daemon_.pid());
    std::ifstream file("/proc/" + pid + "/task/" + pid + "/schedstat");
    double nanoseconds = 0;
    file >> nanoseconds;
    return nanoseconds * 1e-9;
  }

  void account(ServeRun& run) const {
    const json counters = json::parse(daemon_.get("/v1/status").body).at("counters");
    run.steps = counters.at("steps");
    run.rotations_in = counters.at("rotations_in");
    run.rotations_out = counters.at("rotations_out");
    run.bytes_in = counters.at("copy_bytes").at("h2d");
    run.bytes_out = counters.at("copy_bytes").at("d2h");
    run.raw_ttft_met = counters.at("ttft").at("met");
    run.raw_ttft_missed = counters.at("ttft").at("missed");
    run.raw_tbt_met = counters.at("tbt").at("met");
    run.raw_tbt_missed = counters.at("tbt").at("missed");
    for (const auto& engine : engines_) {
      const json health = engine->health();
      run.iterations += health.at("iterations").get<std::uint64_t>();
      run.waited += health.at("waited").get<std::uint64_t>();
      run.waiting_s += health.at("waiting_s").get<double>();
      run.iterating_s += health.at("iterating_s").get<double>();
    }
  }

 private:
  const test::RuntimeFolder folder_;
  test::KvdProcess daemon_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace

Goals unloaded_goals(const ServeStage& stage) {
  constexpr int kRequests = 7;
  ServeStage alone = stage;
  alone.engines = 1;
  alone.bandwidth = "unlimited";
  const Node node(alone, core::Tuning{});
  std::vector<double> ttft, tbt;
  std::mt19937_64 random(1);
  for (int i = 0; i < kRequests; ++i) {
    ServeRequest request{.port = node.port(0)};
    request.prompt.resize((stage.prompt_min + stage.prompt_max) / 2);
    for (std::uint32_t& token : request.prompt) token = static_cast<std::uint32_t>(random() % 256);
    request.new_tokens = (stage.new_min + stage.new_max) / 2;
    const ServeAnswer answer = serve_load({&request, 1}, kPatience_s).front();
    if (answer.token_s.size() < 2) give_up("an unloaded engine makes no tokens", "");
    ttft.push_back(answer.token_s.front() - answer.sent_s);
    for (std::size_t t = 1; t < answer.token_s.size(); ++t) {
      tbt.push_back(answer.token_s[t] - answer.token_s[t - 1]);
    }
  }
  return {median(ttft) * stage.ttft_multiple, median(tbt) * stage.tbt_multiple};
}

ServeRun serve_once(const ServeStage& stage, const core::Tuning& tuning,
                    const std::vector<ServeRequest>& requests) {
  const Node node(stage, tuning);
  std::vector<ServeRequest> addressed = requests;
  for (std::size_t i = 0; i < addressed.size(); ++i) {
    addressed[i].port = node.port(i % stage.engines);
  }
  const double cpu_before = node.control_cpu_s();
  ServeRun run;
  run.answers = serve_load(addressed, stage.seconds + kPatience_s);
  run.control_cpu_s = node.control_cpu_s() - cpu_before;
  for (const ServeAnswer& answer : run.answers) {
    if (!answer.token_s.empty()) run.wall_s = std::max(run.wall_s, answer.token_s.back());
  }
  node.account(run);
  return run;
}

}  // namespace kvd::bench
