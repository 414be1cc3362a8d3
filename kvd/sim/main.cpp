#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "ipc/vocabulary/command_line.hpp"
#include "ipc/vocabulary/standard_streams.hpp"
#include "kvd/sim/commands/commands.hpp"
#include "kvd/sim/profile/profile_commands.hpp"
#include "kvd/sim/run/optional_flag.hpp"
#include "planner/baselines/guarded.hpp"

namespace kvd::sim {
namespace {

constexpr const char* kFooter =
    "\nPolicies: a policy of any of kvd's four decisions sets its own. Beside a rotation policy "
    "stand\n"
    "placement none and admission none, beside others rotation fcfs, placement none and\n"
    "admission whole_request; load is never. unified sets all four defaults; request_wise,\n"
    "pause_resume and deposit are OrbitFlow's ablation. NAME+guards holds prompts back and cuts\n"
    "prefill into chunks so that a step stays within the goal, as unified does (--guards: all).\n"
    "What each figure means: kvd/sim/METRICS.md.\n"
    "Exit codes: 0 done, 1 the simulation failed, 2 wrong usage or input.\n"
    "Examples:\n"
    "  kvd-sim run --trace gen:sharegpt --rate 5 --profile l20-llama2-7b --policy unified\n"
    "  kvd-sim compare --policies fcfs,lvf,unified --seeds 5 --profile gh200-qwen2.5-32b --rate "
    "20\n"
    "  kvd-sim sweep --over dram --values 32GiB,64GiB,128GiB --policies lvf \\\n"
    "    --profile h100-pcie-llama3-8b\n"
    "  kvd-sim knee --profile gh200-qwen2.5-32b\n";

struct Arguments {
  ScenarioOptions scenario;
  RunOptions run;
  SweepOptions sweep;
  KneeOptions knee;
  ProfilesOptions profiles;
  CalibrateOptions calibrate;
  bool guards = false;
  bool progress = false;
};

std::string list(const std::vector<NamedText>& entries) {
  std::string text;
  for (const NamedText& entry : entries) text += (text.empty() ? "" : ", ") + entry.name;
  return text;
}

void describe_workload(CLI::App& app, ScenarioOptions& o) {
  app.add_option("trace,--trace", o.traces,
                 "A trace (Azure CSV, Mooncake JSONL), or a generated workload: " +
                     list(workload_names()) + "; one for each --profile")
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--rate", o.rates,
                 "Requests a second, for all or one for each --trace; a trace is stretched to it")
      ->allow_extra_args(false);
  app.add_option_function<double>(
      "--duration", [&o](double seconds) { o.workload.duration = Seconds(seconds); },
      "Seconds in which requests arrive");
  optional(app, "--requests", o.workload.requests, "How many requests arrive, at most");
  optional(app, "--cv", o.workload.cv, "Coefficient of variation of the gaps between arrivals");
  app.add_option("--seed", o.workload.seed, "Of the (first) workload")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option(
         "--max-tokens", o.workload.max_tokens,
         "The longest answer that requests announce: mix: a third each of 8192, of what the "
         "prompt leaves of the model's context, and of the next power of two; context; a "
         "number; exact: what they will make, which no client knows. Never more than the "
         "context leaves")
      ->capture_default_str();
  optional(app, "--length-error", o.length_error,
           "Answers are predicted, wrong by a factor exp(ERROR x a normal number); 0: an oracle. "
           "Without it lengths are learned from answers that ended");
  app.add_flag("--shortest-first", o.engines.shortest_first,
               "Engines seat the shortest answer first, not the first that came");
  optional(app, "--until", o.until_s, "End after so many seconds, whoever is not done");
}

void describe_machine(CLI::App& app, ScenarioOptions& o) {
  app.add_option("--profile", o.profiles,
                 "Model and machine, a TOML file or one of: " + list(profile_names()) +
                     ". Several: that many engines on the first one's pool and link")
      ->allow_extra_args(false)
      ->required();
  app.add_flag("--one-device", o.engines.one_device, "Engines take turns on one device");
  app.add_flag(
      "--engines-place", o.engines.place,
      "Engines place their blocks themselves, as vLLM does, and ask kvd whom to serve: a "
      "rotation or admission policy, unified, or stock (they ask nobody). Several lend each "
      "other HBM by parts, as elastic vLLMs do");
  app.add_flag("--partition", o.engines.partition,
               "Engines get equal parts of HBM instead of sharing it");
  app.add_option(
         "--guarantee", o.engines.guarantees,
         "HBM that an engine always has, and the same share of DRAM, in a domain of its own; "
         "the rest is for whoever asks first. Once for each --profile")
      ->allow_extra_args(false);
  app.add_option("--hbm", o.hbm, "HBM for KV, e.g. 60GiB, instead of the profile's");
  app.add_option("--dram", o.dram, "DRAM for KV, instead of the profile's");
  app.add_option("--link", o.link, "Factor on the speed of the link")->capture_default_str();
}

void describe_tuning(CLI::App& app, ScenarioOptions& o) {
  optional(app, "--prefill-tokens", o.prefill_tokens,
           "Prompt tokens an iteration may have, instead of the profile's");
  optional(app, "--ttft", o.ttft_s, "Goal for the first token, seconds (5)");
  optional(app, "--tbt", o.tbt_s, "Goal between tokens, seconds (0.1)");
  optional(app, "--tpot", o.tpot_s,
           "Goal for the mean time between tokens, seconds (that of --tbt)");
  app.add_option("--goals", o.engines.goals,
                 "Goals of an engine's requests: TTFT:TBT, e.g. 600:1. Once for each --profile")
      ->allow_extra_args(false);
  app.add_option("--class", o.classes,
                 "Goals of a share of the requests, drawn by lot, whatever their engine: "
                 "TTFT:TBT:SHARE, e.g. 2:0.06:0.1. Several: one after the other")
      ->allow_extra_args(false);
  app.add_option("--overload", o.overload,
                 "Whom unified serves where not all goals can be met: ttft, goodput (goodput)")
      ->check(CLI::IsMember({"ttft", "goodput"}));
  app.add_option("--b-xfer", o.b_xfer, "Bytes rotated a step at most, a size or \"auto\"");
  optional(app, "--alpha", o.alpha, "Weight of a rotated request's lag (3)");
  optional(app, "--beta-b", o.beta_b, "Lag of a rotated request starts at beta_b x TBT goal (0)");
  optional(app, "--beta-f", o.beta_f,
           "Lag of a waiting request starts at beta_f x TTFT goal (0.5)");
}

void describe_output(CLI::App& app, Arguments& arguments) {
  app.add_flag("--guards", arguments.guards,
               "Every policy with the guard of steps that unified has: NAME+guards");
  app.add_flag("--json", arguments.scenario.json, "Print JSON instead of a table");
  app.add_flag("--progress", arguments.progress, "Show progress though stderr is no terminal");
  app.add_flag("--check", arguments.scenario.check,
               "Check every invariant of the Controller after every event (slow)");
}

CLI::App* scenario_command(CLI::App& app, const char* name, const char* help,
                           Arguments& arguments) {
  CLI::App* command = app.add_subcommand(name, help);
  describe_workload(*command, arguments.scenario);
  describe_machine(*command, arguments.scenario);
  describe_tuning(*command, arguments.scenario);
  describe_output(*command, arguments);
  return command;
}

void one_policy(CLI::App& command, ScenarioOptions& o, const char* otherwise) {
  // Commands share the options: this is the default for the command that was called.
  command.parse_complete_callback([&o, otherwise] {
    if (o.policies.empty()) o.policies = {otherwise};
  });
  command.add_option_function<std::string>(
      "--policy", [&o](const std::string& name) { o.policies = {name}; },
      std::string("Its name (") + otherwise + ")");
}

void several_policies(CLI::App& command, ScenarioOptions& o) {
  command.add_option("--policies", o.policies, "Their names: a,b,c")->delimiter(',')->required();
  command.add_option("--seeds", o.seeds, "Runs each, with seeds from --seed on")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

void describe_scenarios(CLI::App& app, Arguments& a) {
  CLI::App* run = scenario_command(app, "run", "One policy on one workload: every figure", a);
  one_policy(*run, a.scenario, "unified");
  run->add_option("--requests-csv", a.run.requests_csv, "File to write, a line a request");
  CLI::App* compare = scenario_command(app, "compare", "Policies on the same workloads", a);
  several_policies(*compare, a.scenario);
  CLI::App* sweep = scenario_command(app, "sweep", "`compare` at each value of a parameter", a);
  several_policies(*sweep, a.scenario);
  sweep->add_option("--over", a.sweep.over, "The parameter")
      ->required()
      ->check(CLI::IsMember(sweep_parameters()));
  sweep->add_option("--values", a.sweep.values, "Its values: a,b,c")->delimiter(',')->required();
  sweep->add_option("--svg", a.sweep.svg, "File for a picture of one figure, a line a policy");
  sweep->add_option("--figure", a.sweep.figure, "That figure")->capture_default_str();
  CLI::App* knee =
      scenario_command(app, "knee", "The rate at which TTFT attainment falls under a threshold", a);
  one_policy(*knee, a.scenario, "fcfs");
  knee->add_option("--seeds", a.knee.seeds, "Runs a rate, with seeds from --seed on")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  knee->add_option("--threshold", a.knee.threshold, "Attainment")->capture_default_str();
  knee->add_option("--precision", a.knee.precision, "Of the rate, as a share")
      ->capture_default_str();
}

void describe_profiles(CLI::App& app, Arguments& a) {
  CLI::App* profiles = app.add_subcommand("profiles", "Models and machines, and their sources");
  profiles->add_option("name", a.profiles.name, "One of them, whole");
  profiles->add_flag("--json", a.profiles.json, "Print JSON instead of tables");
  CLI::App* calibrate =
      app.add_subcommand("calibrate", "A profile out of a running daemon's measurements");
  calibrate->add_option("--from", a.calibrate.from, "What `kvdctl status --json` wrote; - : stdin")
      ->required();
  calibrate->add_option("--base", a.calibrate.base, "Profile for what is not measured")->required();
  calibrate->add_option("--name", a.calibrate.name, "Of the new profile")->capture_default_str();
  calibrate->add_option("--to", a.calibrate.to, "File to write; none: standard output");
}

int dispatch(const CLI::App& app, Arguments& a) {
  if (a.guards) {
    for (std::string& policy : a.scenario.policies) policy = planner::with_guards(policy);
  }
  a.scenario.progress = a.progress || isatty(STDERR_FILENO) == 1;
  const auto& command = app.get_subcommands().front()->get_name();
  if (command == "run") return run_command(a.scenario, a.run, std::cout, std::cerr);
  if (command == "compare") return compare_command(a.scenario, std::cout, std::cerr);
  if (command == "sweep") return sweep_command(a.scenario, a.sweep, std::cout, std::cerr);
  if (command == "knee") return knee_command(a.scenario, a.knee, std::cout, std::cerr);
  if (command == "profiles") return profiles_command(a.profiles, std::cout, std::cerr);
  return calibrate_command(a.calibrate, std::cout, std::cerr);
}

}  // namespace
}  // namespace kvd::sim

namespace {

int run(int argc, char** argv) {
  kvd::sim::Arguments arguments;
  CLI::App app("Plays workloads on kvd's Controller under a virtual clock", "kvd-sim");
  app.footer(kvd::sim::kFooter);
  app.set_version_flag("-V,--version", "kvd-sim " KVD_VERSION, "Print the version and exit");
  app.require_subcommand(1);
  kvd::sim::describe_scenarios(app, arguments);
  kvd::sim::describe_profiles(app, arguments);
  if (const auto ended = kvd::parse_command_line(app, argc, argv)) return *ended;
  return kvd::sim::dispatch(app, arguments);
}

}  // namespace

int main(int argc, char** argv) {
  kvd::open_standard_descriptors();
  return kvd::status_after_output("kvd-sim", run(argc, argv));
}
