// Simulated iterations a minute on one core, in a run of kvd-sim; the limits are absolute. It runs
// 256 seats over a pool that holds about half of them, so that rotation and admission have work,
// and OrbitFlow's batches of 4. CPU time is counted, so a busy machine gives the same figures.
#include <ctime>

#include "kvd/sim/run/inputs.hpp"
#include "kvd/sim/run/setting.hpp"
#include "tests/lab/bench/bench.hpp"

namespace kvd::bench::sim_benchmark {
namespace {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Result<sim::Setting> crowded(const std::string& policy) {
  sim::Setting setting;
  KVD_ASSIGN_OR_RETURN(sim::Profile profile, sim::load_profile("gh200-qwen2.5-32b"));
  profile.limits.max_num_seqs = 256;
  setting.engines.push_back({std::move(profile), 1, Bytes(0)});
  setting.hbm = Bytes(kGiB.value * 12);
  KVD_ASSIGN_OR_RETURN(setting.policy, sim::policy_named(policy));
  sim::WorkloadOptions workload;
  workload.rate = 30;
  workload.duration = sim::Seconds(60);
  KVD_ASSIGN_OR_RETURN(setting.workload, sim::make_workload("gen:sharegpt", workload));
  return setting;
}

Result<sim::Setting> batches_of_four() {
  sim::Setting setting;
  KVD_ASSIGN_OR_RETURN(sim::Profile profile, sim::load_profile("a5000-llama3-8b"));
  setting.engines.push_back({std::move(profile), 1, Bytes(0)});
  KVD_ASSIGN_OR_RETURN(setting.policy, sim::policy_named("orbitflow"));
  sim::WorkloadOptions workload;
  workload.requests = 8;
  KVD_ASSIGN_OR_RETURN(setting.workload, sim::make_workload("gen:fixed-6000-2000", workload));
  return setting;
}

Result<double> thousands_a_minute(const sim::Setting& setting) {
  const double begin = cpu_seconds();
  KVD_ASSIGN_OR_RETURN(const sim::RunResult result, sim::run(setting));
  return static_cast<double>(result.totals.iterations) / (cpu_seconds() - begin) * 60 * 1e-3;
}

int run(const Arguments& arguments) {
  std::vector<Row> rows;
  for (const char* policy : {"fcfs", "lvf", "layerkv", "unified", "orbitflow"}) {
    const bool layers = std::string_view(policy) == "orbitflow";
    const auto setting = layers ? batches_of_four() : crowded(policy);
    const auto figure = setting.ok() ? thousands_a_minute(*setting) : setting.error();
    if (!figure.ok()) {
      std::fprintf(stderr, "kvd-bench: %s: %s\n", policy, figure.error().message.c_str());
      return 1;
    }
    rows.push_back({std::string("sim_") + policy, *figure, {}, {}, "K iterations/min"});
  }
  return print_rows(rows, arguments.json);
}

const Registration registration{{"sim", "kvd-sim's iterations a minute, by policy", run}};

}  // namespace
}  // namespace kvd::bench::sim_benchmark
