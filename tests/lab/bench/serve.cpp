// kvd-bench serve: a node under load, policy by policy. It has a daemon, engines and clients, each
// a process or as good as one; a pool smaller than what the requests need; a throttled link; and
// SLOs as multiples of what an unloaded engine takes in this very run.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "kvd/sim/run/policy_names.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/flags.hpp"
#include "tests/lab/bench/serve_figures.hpp"

namespace kvd::bench::serve_benchmark {
namespace {

constexpr const char* kHelp =
    R"(usage: kvd-bench serve [--json] [--out FOLDER] [--quick] [options]

A daemon and engines as processes of their own, clients that arrive at random over /v1/completions,
a pool smaller than what they need, a throttled link. SLOs are multiples of what one unloaded request
takes in the same run. All policies get the same arrivals, in turn, seed by seed. Prints the means
over the seeds; --out writes every run to serve.json and the attainments to serve.svg.

  --policies A,B,…     what a daemon can run     --engines N          1
  --seeds N            5                         --model SHAPE        as kvd-engine --random
  --first-seed N       1                         --hbm, --dram SIZE   8MiB, 256MiB
  --seconds S          20, of arrivals a run     --bandwidth SIZE     of the link, a second
  --rate N             6 requests a second       --ttft-multiple N    10
  --prompt-min, --prompt-max, --new-min, --new-max N                  --tbt-multiple N     12
  --layers-per-block N 1                         --quick              one seed, 4 seconds a run
)";

struct Options {
  ServeStage stage;
  std::vector<std::string> policies = {"unified", "lvf", "layerkv", "fcfs"};
  std::uint32_t seeds = 5;
  std::uint64_t first_seed = 1;
  std::string out;  ///< folder; empty: none
  bool quick = false;
};

Flags flags_of(Options& options) {
  ServeStage& stage = options.stage;
  return {{"--policies", into(options.policies)},
          {"--seeds", into(options.seeds, 1U)},
          {"--first-seed", into(options.first_seed, std::uint64_t{0})},
          {"--out", into(options.out)},
          {"--seconds", into(stage.seconds, 0.1)},
          {"--rate", into(stage.rate, 0.001)},
          {"--engines", into(stage.engines, 1U)},
          {"--layers-per-block", into(stage.layers_per_block, 1U)},
          {"--model", into(stage.model)},
          {"--hbm", into(stage.hbm)},
          {"--dram", into(stage.dram)},
          {"--bandwidth", into(stage.bandwidth)},
          {"--prompt-min", into(stage.prompt_min, 1U)},
          {"--prompt-max", into(stage.prompt_max, 1U)},
          {"--new-min", into(stage.new_min, 2U)},
          {"--new-max", into(stage.new_max, 2U)},
          {"--ttft-multiple", into(stage.ttft_multiple, 1.0)},
          {"--tbt-multiple", into(stage.tbt_multiple, 1.0)}};
}

/// None after a mistake, which has been reported.
std::optional<Options> parse(const std::vector<std::string>& arguments) {
  Options options;
  const Flags flags = flags_of(options);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--quick") {
      options.quick = true;
      continue;
    }
    if (!take_flag(flags, arguments, i, "serve", kHelp)) return std::nullopt;
    ++i;
  }
  const ServeStage& stage = options.stage;
  if (stage.prompt_min > stage.prompt_max || stage.new_min > stage.new_max) {
    std::fprintf(stderr, "kvd-bench serve: a minimum is above its maximum\n");
    return std::nullopt;
  }
  if (options.quick) {
    options.seeds = 1;
    options.stage.seconds = std::min(options.stage.seconds, 4.0);
  }
  return options;
}

/// Goes seed by seed, and for each seed policy by policy, so that a change of the machine's speed
/// affects all. Each seed begins with another policy.
std::vector<PolicyRuns> run_all(const Options& options, const std::vector<sim::NamedPolicy>& named,
                                const Goals& goals) {
  std::vector<PolicyRuns> out;
  out.reserve(named.size());
  for (const auto& policy : named) out.push_back({policy.name, {}});
  for (std::uint32_t round = 0; round < options.seeds; ++round) {
    const auto requests = arrivals(options.stage, options.first_seed + round, goals);
    for (std::size_t i = 0; i < named.size(); ++i) {
      const std::size_t p = (i + round) % named.size();
      const ServeRun run = serve_once(options.stage, named[p].tuning, requests);
      out[p].runs.push_back(figures_of(run, goals));
      const auto& figures = out[p].runs.back();
      std::fprintf(stderr,
                   "seed %lu %-18s TTFT %3.0f %% TBT %3.0f %% TPOT %3.0f %%, %.0f token/s\n",
                   static_cast<unsigned long>(options.first_seed + round), named[p].name.c_str(),
                   100 * figures[0].value, 100 * figures[1].value, 100 * figures[2].value,
                   figures[11].value);
    }
  }
  return out;
}

void write_files(const Options& options, const Goals& goals,
                 const std::vector<PolicyRuns>& policies) {
  std::filesystem::create_directories(options.out);
  const std::string stem = options.out + "/serve";
  std::ofstream(stem + ".json") << serve_json(options.stage, goals, policies) << "\n";
  std::ofstream(stem + ".svg") << serve_svg(options.stage, goals, policies);
  std::fprintf(stderr, "wrote %s.json and .svg\n", stem.c_str());
}

int run(const Arguments& arguments) {
  const auto options = parse(arguments.rest);
  if (!options) return 2;
  std::vector<sim::NamedPolicy> named;
  for (const std::string& name : options->policies) {
    auto policy = sim::policy_named(name);
    if (!policy.ok()) {
      std::fprintf(stderr, "kvd-bench serve: %s\n", policy.error().message.c_str());
      return 2;
    }
    if (const auto faults = policy->tuning.faults(); !faults.empty()) {
      std::fprintf(stderr, "kvd-bench serve: no daemon runs %s: %s\n", name.c_str(),
                   faults.front().c_str());
      return 2;
    }
    if (policy->stock) {
      std::fprintf(stderr, "kvd-bench serve: kvd places here, and %s asks nobody\n", name.c_str());
      return 2;
    }
    named.push_back(std::move(*policy));
  }
  const Goals goals = unloaded_goals(options->stage);
  std::fprintf(stderr, "goals: TTFT %.1f ms, TBT %.2f ms\n", goals.ttft_s * 1e3, goals.tbt_s * 1e3);
  const std::vector<PolicyRuns> policies = run_all(*options, named, goals);
  if (!options->out.empty()) write_files(*options, goals, policies);
  std::vector<Row> rows;
  for (const PolicyRuns& policy : policies) {
    for (const Figure& figure : policy.means()) {
      rows.push_back({policy.policy + "." + figure.name, figure.value, {}, {}, figure.unit});
    }
  }
  return print_rows(rows, arguments.json);
}

const Registration registration{
    {"serve", "a node under load, policy by policy; more: serve --help", run, kHelp}};

}  // namespace
}  // namespace kvd::bench::serve_benchmark
