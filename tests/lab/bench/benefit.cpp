// kvd-bench benefit: what one pool is worth to two engines. It plays the same requests on two
// daemons with half of the memory each, and on one daemon with all of it; nothing else differs.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/benefit_figures.hpp"
#include "tests/lab/bench/flags.hpp"

namespace kvd::bench::benefit_benchmark {
namespace {

constexpr const char* kHelp =
    R"(usage: kvd-bench benefit [--json] [--out FOLDER] [options]

The same requests at two engines, on two kvds with half of the memory each and on one kvd with all of
it. The engines' bursts alternate. Daemons, engines (kvd-engine) and copies are real, on host memory;
an iteration takes 5 ms at least, as on a GPU, where many requests take hardly longer than one. Each
half has a link of its own, as fast as the one of the whole, which is to the halves' advantage.
A request is within its SLO where its first token came in time (TTFT) and its tokens at the pace on
the mean (TBT). Prints a table, --json benefit.json; --out writes benefit.json and benefit.svg.

  --seeds N            5                        --model SHAPE        as kvd-engine --random
  --first-seed N       1                        --iteration-ms N     5, at least
  --seconds S          5, of arrivals a run     --hbm-mib N          12, of both; a multiple of 4
  --phase S            2.5, of a burst          --dram-mib N         128, of both; a multiple of 4
  --busy-rate N        7 requests a second      --bandwidth SIZE     256MiB a second, of each link
  --quiet-rate N       0.5 requests a second    --ttft-s, --tbt-s S  0.5, 0.02: the SLO
  --prompt-min, --prompt-max, --new-min, --new-max N   64, 192, 64, 192 tokens
  --pace X             measured, at most 1.6: times as slow as all of this; 1 to 4

On a machine whose CPUs need longer than the least time for an iteration, everything is played slower by the
same factor, goals and link included: a burst at both engines measures it first. The table says so.
Where iterations took a fifth longer than their least time even so, the machine was too busy, and it says that.
With --quiet-rate equal to --busy-rate both halves are as full as each other, and sharing gains little.
Exit status: 0; 1 where one kvd had fewer requests within their SLO than the halves with some seed.
)";

struct Options {
  BenefitStage stage;
  std::uint32_t seeds = 5;
  std::uint64_t first_seed = 1;
  std::string out;  ///< folder; empty: none
  double pace = 0;  ///< 0: measured
};

Flags flags_of(Options& options) {
  BenefitStage& stage = options.stage;
  return {{"--seeds", into(options.seeds, 1U)},
          {"--first-seed", into(options.first_seed, std::uint64_t{0})},
          {"--out", into(options.out)},
          {"--pace", into(options.pace, 1.0)},
          {"--seconds", into(stage.serve.seconds, 0.1)},
          {"--phase", into(stage.phase_s, 0.1)},
          {"--busy-rate", into(stage.busy_rate, 0.001)},
          {"--quiet-rate", into(stage.quiet_rate, 0.0)},
          {"--ttft-s", into(stage.goals.ttft_s, 0.001)},
          {"--tbt-s", into(stage.goals.tbt_s, 0.0001)},
          {"--hbm-mib", into(stage.hbm_mib, 4U)},
          {"--dram-mib", into(stage.dram_mib, 4U)},
          {"--model", into(stage.serve.model)},
          {"--iteration-ms", into(stage.serve.iteration_ms, 0.0)},
          {"--bandwidth", into(stage.serve.bandwidth)},
          {"--prompt-min", into(stage.serve.prompt_min, 1U)},
          {"--prompt-max", into(stage.serve.prompt_max, 1U)},
          {"--new-min", into(stage.serve.new_min, 2U)},
          {"--new-max", into(stage.serve.new_max, 2U)}};
}

/// The fault of the stage; nullptr: there is none.
const char* fault_of(const BenefitStage& stage) {
  const ServeStage& serve = stage.serve;
  if (serve.prompt_min > serve.prompt_max || serve.new_min > serve.new_max) {
    return "a minimum is above its maximum";
  }
  if (stage.hbm_mib % 4 != 0 || stage.dram_mib % 4 != 0) return "half of it is no whole slabs";
  if (stage.quiet_rate > stage.busy_rate) return "the quiet rate is above the busy one";
  return nullptr;
}

/// None after a mistake, which has been reported.
std::optional<Options> parse(const std::vector<std::string>& arguments) {
  Options options;
  const Flags flags = flags_of(options);
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    if (!take_flag(flags, arguments, i, "benefit", kHelp)) return std::nullopt;
  }
  const char* fault = options.pace > 4 ? "the pace is above 4" : fault_of(options.stage);
  if (fault) {
    std::fprintf(stderr, "kvd-bench benefit: %s\n", fault);
    return std::nullopt;
  }
  return options;
}

/// Goes seed by seed through the halves and the whole, and starts with the other one at every
/// second seed.
BenefitRuns run_all(const Options& options) {
  BenefitRuns out;
  for (std::uint32_t round = 0; round < options.seeds; ++round) {
    const std::uint64_t seed = options.first_seed + round;
    const auto requests = bursts(options.stage, seed);
    for (std::uint32_t turn = 0; turn < 2; ++turn) {
      const std::uint32_t pools = 1 + (turn + round + 1) % 2;
      PolicyRuns& runs = pools == 1 ? out.kvd : out.halves;
      runs.runs.push_back(
          figures_of(run_on_pools(options.stage, pools, requests), options.stage.goals));
      const auto& figures = runs.runs.back();
      std::fprintf(stderr, "  seed %lu %-6s %3.0f of %.0f within SLO, P95 TTFT %4.0f ms\n",
                   static_cast<unsigned long>(seed), runs.policy.c_str(),
                   value_of(figures, "within_slo"), value_of(figures, "requests"),
                   1e3 * value_of(figures, "ttft_p95"));
    }
  }
  return out;
}

int run(const Arguments& arguments) {
  auto options = parse(arguments.rest);
  if (!options) return 2;
  const double pace = options->pace > 0 ? options->pace : pace_of_this_machine(options->stage);
  options->stage = slowed(options->stage, pace);
  if (pace > 1)
    std::fprintf(stderr, "  all is played %.2f times as slow, for this machine\n", pace);
  const BenefitRuns runs = run_all(*options);
  const std::string json = benefit_json(options->stage, runs) + "\n";
  if (!options->out.empty()) {
    std::filesystem::create_directories(options->out);
    std::ofstream(options->out + "/benefit.json") << json;
    std::ofstream(options->out + "/benefit.svg") << benefit_svg(options->stage, runs);
  }
  std::fputs(arguments.json ? json.c_str() : benefit_text(options->stage, runs).c_str(), stdout);
  if (!never_fewer(runs)) {
    std::fprintf(stderr, "kvd-bench benefit: with some seed one kvd had fewer within their SLO%s\n",
                 machine_was_busy(options->stage, runs) ? ", on a machine that was too busy" : "");
    return 1;
  }
  return 0;
}

const Registration registration{
    {"benefit", "one kvd against two halves of the memory; more: benefit --help", run, kHelp}};

}  // namespace
}  // namespace kvd::bench::benefit_benchmark
