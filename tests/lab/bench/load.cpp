// kvd-bench load: whether kvd decides well between loading what was found and computing it again.
// It is simulated: the real Controller runs under a virtual clock, and engines, link and disk are
// models.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "kvd/sim/run/inputs.hpp"
#include "kvd/sim/run/setting.hpp"
#include "tests/lab/bench/bench.hpp"

namespace kvd::bench::load_benchmark {
namespace {

constexpr const char* kLoadHelp =
    R"(usage: kvd-bench load [--json] [--requests N] [--rate N] [--disk-gb-s N] [--trace FILE]

SIMULATED: the real Controller under a virtual clock; engine and link are those of kvd-sim's profile
h100-pcie-llama3-8b, the disk is a queue with a rate. Conversations (gen:chat of kvd-sim, or a trace
with hash_ids such as Mooncake's), HBM and DRAM together hold 5 % of their different blocks, the disk
all. Each row says by how much the mean time to the first token under load.policy = measured_crossover
is above that under the better of always and never, as a share of that; below 0 it is better than both.

  regret                                                                       limit .10
  regret_slow_disk  the same, the disk ten times slower from the middle on     limit .10
  regret_64_clients 64 clients that all ask at once, eight turns long, for
                    prompts of 4,096 to 12,288 tokens                          limit .10

  --requests N    of the first two rows: 3000
  --rate N        requests a second of these: 1
  --disk-gb-s N   6
  --trace FILE    instead of gen:chat
)";

constexpr double kCapacity = 0.05;
constexpr std::uint32_t kClients = 64, kTurns = 8;

/// Each turn's prompt is the one before it and two blocks more.
sim::Workload clients() {
  std::mt19937_64 random(1);
  sim::Workload workload;
  for (std::uint32_t turn = 0; turn < kTurns; ++turn) {
    for (std::uint32_t client = 0; client < kClients; ++client) {
      sim::Arrival arrival;
      arrival.time = sim::Seconds(turn * 60.0 + static_cast<double>(random() % 1000) * 1e-3);
      const std::uint64_t blocks = 8 + 2 * turn;
      arrival.prompt = Tokens(static_cast<std::int64_t>(blocks) * 512 + 1);
      arrival.output = Tokens(64);
      for (std::uint64_t block = 0; block < blocks; ++block) {
        arrival.prefix.push_back(std::uint64_t{client} * 1000 + block);
      }
      workload.push_back(arrival);
    }
  }
  std::stable_sort(workload.begin(), workload.end(),
                   [](const auto& a, const auto& b) { return a.time < b.time; });
  return workload;
}

std::int64_t distinct_blocks(const sim::Workload& workload) {
  std::unordered_set<std::uint64_t> seen;
  for (const auto& arrival : workload) seen.insert(arrival.prefix.begin(), arrival.prefix.end());
  return std::ssize(seen);
}

sim::Setting setting_of(sim::Workload workload, double disk_rate) {
  auto profile = sim::load_profile("h100-pcie-llama3-8b");
  auto policy = sim::policy_named("unified");
  KVD_CHECK(profile.ok() && policy.ok(), "a profile or policy of kvd-sim is not there");
  const Bytes block = profile->shape.slot_bytes() * std::int64_t{profile->shape.groups()} *
                      (sim::kPrefixTokens.value / profile->shape.block_tokens);
  const auto all = block * distinct_blocks(workload);
  const auto memory = Bytes(static_cast<std::int64_t>(kCapacity * static_cast<double>(all.value)));
  // Running requests need room, too, however little is to be cached.
  const Bytes least = block * 80;
  sim::Setting setting;
  setting.engines.push_back({*profile, 1, Bytes(0)});
  setting.policy = *policy;
  setting.workload = std::move(workload);
  setting.hbm = std::max(Bytes(memory.value / 2), least);
  setting.dram = std::max(Bytes(memory.value / 2), least);
  setting.prefixes = true;
  setting.disk = sim::DiskModel{.size = all * 2, .bytes_per_s = disk_rate};
  return setting;
}

/// The mean, in seconds.
double mean_ttft(sim::Setting& setting, const std::string& policy) {
  setting.policy.tuning.load.policy = policy;
  const auto result = sim::run(setting);
  if (!result.ok()) {
    std::fprintf(stderr, "kvd-bench load: %s\n", result.error().message.c_str());
    std::exit(1);
  }
  double sum = 0, count = 0, found = 0, asked = 0;
  for (const sim::RequestRecord& record : result->requests) {
    asked += static_cast<double>(record.prompt.value);
    found += static_cast<double>(record.found.value);
    if (record.tokens.empty()) continue;
    sum += (record.tokens.front() - record.arrival).count();
    ++count;
  }
  std::fprintf(stderr, "%-20s mean TTFT %.4f s, %.0f %% of prompt tokens found\n", policy.c_str(),
               sum / count, 100 * found / asked);
  return sum / count;
}

void add_regret(const std::string& load, sim::Setting setting, std::vector<Row>& rows) {
  std::fprintf(stderr, "regret%s: %zu requests\n", load.c_str(), setting.workload.size());
  const double always = mean_ttft(setting, "always");
  const double never = mean_ttft(setting, "never");
  const double ours = mean_ttft(setting, "measured_crossover");
  const double better = std::min(always, never);
  rows.push_back({"regret" + load, ours / better - 1, {}, {}, "of the better one's mean TTFT"});
}

int load(const Arguments& arguments) {
  sim::WorkloadOptions options;
  const double requests = arguments.number("--requests", 3000);
  const double disk = arguments.number("--disk-gb-s", 6) * 1e9;
  options.rate = arguments.number("--rate", 1);
  options.requests = static_cast<std::size_t>(std::clamp(requests, 1.0, 1e6));
  const std::string trace = arguments.text("--trace").value_or("gen:chat");
  const auto workload = sim::make_workload(trace, options);
  if (!workload.ok() || !(disk > 0)) {
    std::fprintf(stderr, "kvd-bench load: %s\n",
                 workload.ok() ? "--disk-gb-s is above 0" : workload.error().message.c_str());
    return 2;
  }
  std::vector<Row> rows;
  const sim::Setting plain = setting_of(*workload, disk);
  add_regret("", plain, rows);
  sim::Setting slow = plain;
  slow.disk->slow_from = workload->back().time / 2;
  add_regret("_slow_disk", slow, rows);
  add_regret("_64_clients", setting_of(clients(), disk), rows);
  return print_rows(rows, arguments.json);
}

const Registration registration{
    {"load", "load or recompute, simulated; more: load --help", load, kLoadHelp}};

}  // namespace
}  // namespace kvd::bench::load_benchmark
