// kvd-bench reality: does kvd-sim tell the truth? It plays the same requests on a daemon and a
// kvd-engine as processes of their own, and in kvd-sim with the costs measured on this machine in
// this run.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "kvd/sim/run/knee.hpp"
#include "kvd/sim/run/metrics.hpp"
#include "kvd/sim/run/policy_names.hpp"
#include "kvd/sim/run/setting.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/engine_costs.hpp"
#include "tests/lab/bench/flags.hpp"
#include "tests/lab/bench/serve_figures.hpp"

namespace kvd::bench::reality_benchmark {
namespace {

constexpr const char* kHelp =
    R"(usage: kvd-bench reality [--json] [options]

The same Poisson arrivals on a real node (a daemon and a kvd-engine, processes of their own, clients
over /v1/completions) and in kvd-sim, whose costs of an iteration are measured on the same node
first. Rates are multiples of the knee that kvd-sim finds for fcfs (90 % of requests within both
goals, three seeds); goals are multiples of what one unloaded request takes. Prints, by load and policy, what
was seen and what was simulated, means over the seeds, and how far they are apart. In the table `value`
is what was seen, `floor` what was simulated, `ratio` the second over the first. Wanted: shares
within 5 points, P50 of TTFT within 15 %, rotations within 10 %.

  --policies A,B,…  fcfs,lvf,unified    --model SHAPE       as kvd-engine --random
  --loads X,Y,…     1.0,1.3             --hbm, --dram SIZE  8MiB, 256MiB
  --seeds N         5                   --bandwidth SIZE    1GiB, of the link, a second
  --first-seed N    1                   --ttft-multiple N   10
  --seconds S       20, of arrivals     --tbt-multiple N    12
  --iteration-ms N  5, what an iteration takes at least: as on a GPU, where many requests take
                    hardly longer than one and memory is what is short
)";

struct Options {
  ServeStage stage{.iteration_ms = 5};
  std::vector<std::string> policies = {"fcfs", "lvf", "unified"};
  std::vector<double> loads = {1.0, 1.3};
  std::uint32_t seeds = 5;
  std::uint64_t first_seed = 1;
};

Flags flags_of(Options& options) {
  ServeStage& stage = options.stage;
  return {{"--policies", into(options.policies)},
          {"--loads", into(options.loads, 0.01)},
          {"--seeds", into(options.seeds, 1U)},
          {"--first-seed", into(options.first_seed, std::uint64_t{0})},
          {"--seconds", into(stage.seconds, 0.1)},
          {"--model", into(stage.model)},
          {"--hbm", into(stage.hbm)},
          {"--dram", into(stage.dram)},
          {"--bandwidth", into(stage.bandwidth)},
          {"--iteration-ms", into(stage.iteration_ms, 0.0)},
          {"--ttft-multiple", into(stage.ttft_multiple, 1.0)},
          {"--tbt-multiple", into(stage.tbt_multiple, 1.0)}};
}

/// None after a mistake, which has been reported.
std::optional<Options> parse(const std::vector<std::string>& arguments) {
  Options options;
  const Flags flags = flags_of(options);
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    if (!take_flag(flags, arguments, i, "reality", kHelp)) return std::nullopt;
  }
  return options;
}

/// The scene that both sides play.
struct Scene {
  ServeStage stage;
  Goals goals;
  sim::Profile profile;
};

sim::Workload workload_of(const std::vector<ServeRequest>& requests) {
  sim::Workload out;
  for (const ServeRequest& request : requests) {
    sim::Arrival arrival;
    arrival.time = sim::Seconds(request.at_s);
    arrival.prompt = Tokens(std::ssize(request.prompt));
    arrival.output = Tokens(static_cast<std::int64_t>(request.new_tokens));
    arrival.ttft_slo = sim::Seconds(request.ttft_s);
    arrival.tbt_slo = arrival.tpot_slo = sim::Seconds(request.tbt_s);
    out.push_back(arrival);
  }
  return out;
}

/// The simulated run as the clients of a real run would have seen it.
ServeRun as_seen(const sim::RunResult& result) {
  ServeRun run;
  run.rotations_out = result.totals.rotations_out;
  for (const sim::RequestRecord& record : result.requests) {
    ServeAnswer answer;
    answer.sent_s = record.arrival.count();
    answer.complete = record.finished();
    for (const TimePoint at : sim::deliver(record).times) {
      answer.token_s.push_back(to_seconds(at));
    }
    if (!answer.token_s.empty()) run.wall_s = std::max(run.wall_s, answer.token_s.back());
    run.answers.push_back(std::move(answer));
  }
  return run;
}

Result<ServeRun> simulate(const Scene& scene, const sim::NamedPolicy& policy,
                          const std::vector<ServeRequest>& requests) {
  sim::Setting setting;
  setting.engines.push_back({scene.profile, 1, Bytes(0)});
  setting.policy = policy;
  setting.workload = workload_of(requests);
  KVD_ASSIGN_OR_RETURN(const sim::RunResult result, sim::run(setting));
  return as_seen(result);
}

/// Requests a second that fcfs can just serve, according to kvd-sim.
Result<double> simulated_knee(const Scene& scene) {
  constexpr std::uint64_t kKneeSeeds = 3;
  constexpr double kThreshold = 0.9;
  constexpr double kPrecision = 0.02;
  KVD_ASSIGN_OR_RETURN(const sim::NamedPolicy fcfs, sim::policy_named("fcfs"));
  const auto within = [&](double rate) -> Result<double> {
    ServeStage stage = scene.stage;
    stage.rate = rate;
    double met = 0, all = 0;
    for (std::uint64_t seed = 1; seed <= kKneeSeeds; ++seed) {
      const auto requests = arrivals(stage, seed, scene.goals);
      if (requests.empty()) continue;
      KVD_ASSIGN_OR_RETURN(const ServeRun run, simulate(scene, fcfs, requests));
      const auto figures = figures_of(run, scene.goals);
      met += value_of(figures, "within_slo");
      all += value_of(figures, "requests");
    }
    return all > 0 ? met / all : 1;
  };
  KVD_ASSIGN_OR_RETURN(const sim::Knee knee, sim::find_knee(within, 1, kThreshold, kPrecision));
  return knee.rate;
}

/// The runs of one policy at one load, by seed.
struct Pair {
  std::string name;
  PolicyRuns real, simulated;
};

/// Goes seed by seed, and for each seed policy by policy, so that a change of the machine's speed
/// affects all.
Status play(const Options& options, Scene scene, double load, double knee, std::vector<Pair>& out) {
  scene.stage.rate = load * knee;
  std::vector<sim::NamedPolicy> named;
  std::vector<Pair> pairs;
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", load);
  for (const std::string& name : options.policies) {
    KVD_ASSIGN_OR_RETURN(named.emplace_back(), sim::policy_named(name));
    pairs.push_back({std::string(text) + "." + name, {name, {}}, {name, {}}});
  }
  for (std::uint32_t round = 0; round < options.seeds; ++round) {
    const auto requests = arrivals(scene.stage, options.first_seed + round, scene.goals);
    for (std::size_t i = 0; i < named.size(); ++i) {
      const std::size_t p = (i + round) % named.size();
      KVD_ASSIGN_OR_RETURN(const ServeRun simulated, simulate(scene, named[p], requests));
      const ServeRun real = serve_once(scene.stage, named[p].tuning, requests);
      pairs[p].real.runs.push_back(figures_of(real, scene.goals));
      pairs[p].simulated.runs.push_back(figures_of(simulated, scene.goals));
      std::fprintf(stderr,
                   "load %s seed %lu %-10s within both goals %3.0f, simulated %3.0f of %zu\n", text,
                   static_cast<unsigned long>(options.first_seed + round), named[p].name.c_str(),
                   value_of(pairs[p].real.runs.back(), "within_slo"),
                   value_of(pairs[p].simulated.runs.back(), "within_slo"), requests.size());
    }
  }
  out.insert(out.end(), pairs.begin(), pairs.end());
  return {};
}

/// What is compared and how, and how close it has to be.
struct Compared {
  const char* figure;
  enum class Apart { kPoints, kPercent } apart;
  std::optional<double> wanted;
};
constexpr Compared kCompared[] = {
    {"joint_attainment", Compared::Apart::kPoints, 5},
    {"ttft_attainment", Compared::Apart::kPoints, 5},
    {"tpot_attainment", Compared::Apart::kPoints, 5},
    {"ttft_p50", Compared::Apart::kPercent, 15},
    {"rotations_out", Compared::Apart::kPercent, 10},
    {"ttft_p99", Compared::Apart::kPercent, std::nullopt},
    {"throughput", Compared::Apart::kPercent, std::nullopt},
};

double apart(const Compared& compared, double real, double simulated) {
  if (compared.apart == Compared::Apart::kPoints) return 100 * (simulated - real);
  return real == simulated ? 0 : 100 * (simulated / real - 1);
}

double figure(const PolicyRuns& runs, const std::string& name) {
  const auto means = runs.means();
  if (name != "joint_attainment") return value_of(means, name);
  return value_of(means, "within_slo") / value_of(means, "requests");
}

/// value: as seen; floor: as simulated; ratio: simulated over seen.
std::vector<Row> rows_of(const std::vector<Pair>& pairs, const Goals& goals) {
  std::vector<Row> rows;
  int wanted = 0, missed = 0;
  for (const Pair& pair : pairs) {
    for (const Compared& compared : kCompared) {
      const double real = figure(pair.real, compared.figure);
      const double simulated = figure(pair.simulated, compared.figure);
      const double off = apart(compared, real, simulated);
      const bool miss = compared.wanted && !(std::abs(off) <= *compared.wanted);
      wanted += compared.wanted ? 1 : 0;
      missed += miss ? 1 : 0;
      char unit[64];
      std::snprintf(unit, sizeof unit, "%+.1f %s%s", off,
                    compared.apart == Compared::Apart::kPoints ? "points" : "%",
                    miss ? ", too far" : "");
      rows.push_back({pair.name + "." + compared.figure, real, simulated,
                      real > 0 ? std::optional(simulated / real) : std::nullopt, unit});
    }
  }
  rows.push_back({"goal_ttft", goals.ttft_s, {}, {}, "s"});
  rows.push_back({"goal_tbt", goals.tbt_s, {}, {}, "s"});
  rows.push_back(
      {"too_far", static_cast<double>(missed), static_cast<double>(wanted), {}, "of all"});
  return rows;
}

void tell(const Scene& scene, double knee) {
  const sim::IterationModel& model = scene.profile.iteration;
  std::fprintf(stderr,
               "goals: TTFT %.1f ms, TBT %.2f ms\n"
               "an iteration: at least %.3f ms; %.3f ms + %.4f ms a request + %.5f us a token "
               "read; prefill %.3f ms "
               "+ %.4f ms a token + %.5f us a pair\n"
               "knee of fcfs, simulated: %.2f requests a second\n",
               scene.goals.ttft_s * 1e3, scene.goals.tbt_s * 1e3, model.least.count() * 1e3,
               model.fixed.count() * 1e3, model.sequence.count() * 1e3,
               model.context_token.count() * 1e6, model.prefill_fixed.count() * 1e3,
               model.flops_per_token * 1e3, model.attention_flops_per_pair * 1e6, knee);
}

Result<std::vector<Row>> compare(const Options& options) {
  Scene scene{options.stage, unloaded_goals(options.stage), measured_profile(options.stage)};
  KVD_ASSIGN_OR_RETURN(const double knee, simulated_knee(scene));
  tell(scene, knee);
  std::vector<Pair> pairs;
  for (const double load : options.loads) KVD_TRY(play(options, scene, load, knee, pairs));
  std::vector<Row> rows = rows_of(pairs, scene.goals);
  rows.push_back({"knee", knee, {}, {}, "requests/s"});
  return rows;
}

int run(const Arguments& arguments) {
  const auto options = parse(arguments.rest);
  if (!options) return 2;
  const auto rows = compare(*options);
  if (!rows.ok()) {
    std::fprintf(stderr, "kvd-bench reality: %s\n", rows.error().message.c_str());
    return 2;
  }
  return print_rows(*rows, arguments.json);
}

const Registration registration{
    {"reality", "kvd-sim beside a real node under the same load; more: reality --help", run,
     kHelp}};

}  // namespace
}  // namespace kvd::bench::reality_benchmark
