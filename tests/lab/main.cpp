#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <optional>
#include <string>

#include "ipc/vocabulary/command_line.hpp"
#include "ipc/vocabulary/standard_streams.hpp"
#include "kvd/sim/run/optional_flag.hpp"
#include "tests/lab/cache/policies.hpp"
#include "tests/lab/commands/commands.hpp"

namespace kvd::sim {
namespace {

constexpr const char* kFooter =
    "\nWhat each figure means: kvd/sim/METRICS.md.\n"
    "Exit codes: 0 done, 1 the simulation failed or a policy is behind, 2 wrong usage or input.\n"
    "Examples:\n"
    "  kvd-lab cache --profile gh200-qwen2.5-32b --seeds 5\n"
    "  kvd-lab grid --cells 2 --seeds 1 --against fcfs --out grid\n"
    "  kvd-lab reproduce of-fig3\n";

struct Arguments {
  ReproduceOptions reproduce;
  ReportOptions report;
  CacheOptions cache;
  GridOptions grid;
  bool progress = false;
};

void describe_cache(CLI::App& app, Arguments& a) {
  CLI::App* cache =
      app.add_subcommand("cache", "What a prefix cache of a tier finds, by policy of eviction");
  cache
      ->add_option(
          "--trace", a.cache.trace,
          "Mooncake's JSONL, gen:chat or gen:agents: workloads that say which prompts begin alike")
      ->capture_default_str();
  cache->add_option("--profile", a.cache.profile, "Model and machine, for what computing costs")
      ->required();
  for (const CachePolicy& policy : cache_policies()) a.cache.policies.emplace_back(policy.name);
  cache->add_option("--policies", a.cache.policies, "Their names: a,b,c")
      ->delimiter(',')
      ->capture_default_str();
  cache
      ->add_option("--capacity", a.cache.capacities,
                   "Percent of the workload's different blocks that there is room for: a,b,c")
      ->delimiter(',')
      ->capture_default_str();
  cache->add_option("--seeds", a.cache.seeds, "Workloads, with seeds from --seed on")
      ->capture_default_str();
  cache->add_option("--seed", a.cache.workload.seed, "Of the first workload")
      ->capture_default_str();
  optional(*cache, "--rate", a.cache.workload.rate, "Requests a second; a trace is stretched");
  optional(*cache, "--requests", a.cache.workload.requests, "How many requests arrive, at most");
  cache->add_flag("--json", a.cache.json, "Print JSON instead of tables");
  cache->add_flag("--progress", a.progress, "Show progress though stderr is no terminal");
}

void describe_grid(CLI::App& app, Arguments& a) {
  CLI::App* grid = app.add_subcommand(
      "grid",
      "A policy beside the best of the others on cells drawn from all there is; ends with "
      "1 where it is behind");
  grid->add_option("--policy", a.grid.policy, "Its name")->capture_default_str();
  grid->add_option("--out", a.grid.folder,
                   "Folder that keeps every result: a later call goes on there. After a change of "
                   "kvd take another")
      ->capture_default_str();
  grid->add_option("--jobs", a.grid.jobs, "Threads")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  grid->add_option("--seeds", a.grid.seeds, "Runs of a cell, at most 5")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  grid->add_flag("--kept-apart", a.grid.kept_apart,
                 "Seeds from 6 on, which no policy is tuned on, instead of from 1 on");
  grid->add_option("--tolerance", a.grid.tolerance,
                   "How far behind is not behind yet, as a share of requests")
      ->capture_default_str();
  optional(*grid, "--cells", a.grid.cells, "Only the first ones; they are in no order");
  grid->add_option("--only", a.grid.only, "Only these, e.g. c006,c014")->delimiter(',');
  grid->add_option("--against", a.grid.against, "The other policies, instead of all that are known")
      ->delimiter(',');
  CLI::Option* ground =
      grid->add_option("--ground", a.grid.ground,
                       "Which cells: machines under load (c001, …), or goals: several classes of "
                       "goals (g001, …), each of which is judged")
          ->check(CLI::IsMember({"machines", "goals"}))
          ->capture_default_str();
  grid->add_flag(
      "--engines-place", a.grid.engines_place,
      "The same cells with engines that place their blocks themselves, as vLLM does, each "
      "in its part of the memory");
  grid->add_option("--axes", a.grid.axes, "JSON file with other axes")->excludes(ground);
  grid->add_flag("--json", a.grid.json, "Print JSON instead of a list");
  grid->add_flag("--progress", a.progress, "Show progress though stderr is no terminal");
}

void describe_figures(CLI::App& app, Arguments& a) {
  CLI::App* reproduce = app.add_subcommand("reproduce", "Figures of the papers, and beyond");
  reproduce->add_option("figure", a.reproduce.figure, "A figure or `all`; none: list them");
  reproduce->add_flag("--json", a.reproduce.json, "Print JSON instead of tables");
  reproduce->add_option("--seeds", a.reproduce.seeds, "Runs a point")->capture_default_str();
  reproduce->add_option("--seed", a.reproduce.first_seed, "The first one")->capture_default_str();
  reproduce->add_flag("--progress", a.progress, "Show progress though stderr is no terminal");
  CLI::App* report = app.add_subcommand("report", "The figures as one HTML page and SVG files");
  report->add_option("--out", a.report.folder, "Folder to write")->required();
  report->add_option("figures", a.report.figures, "Only these");
  report->add_option("--seeds", a.report.seeds, "Runs a point")->capture_default_str();
  report->add_option("--seed", a.report.first_seed, "The first one")->capture_default_str();
  report->add_flag("--progress", a.progress, "Show progress though stderr is no terminal");
}

int dispatch(const CLI::App& app, Arguments& a) {
  const bool progress = a.progress || isatty(STDERR_FILENO) == 1;
  a.reproduce.progress = a.report.progress = a.cache.progress = a.grid.progress = progress;
  const auto& command = app.get_subcommands().front()->get_name();
  if (command == "cache") return cache_command(a.cache, std::cout, std::cerr);
  if (command == "grid") return grid_command(a.grid, std::cout, std::cerr);
  if (command == "reproduce") return reproduce_command(a.reproduce, std::cout, std::cerr);
  return report_command(a.report, std::cout, std::cerr);
}

}  // namespace
}  // namespace kvd::sim

namespace {

int run(int argc, char** argv) {
  kvd::sim::Arguments arguments;
  CLI::App app(
      "Compares kvd's policies with others and makes the papers' figures, in kvd-sim's world",
      "kvd-lab");
  app.footer(kvd::sim::kFooter);
  app.set_version_flag("-V,--version", "kvd-lab " KVD_VERSION, "Print the version and exit");
  app.require_subcommand(1);
  kvd::sim::describe_cache(app, arguments);
  kvd::sim::describe_grid(app, arguments);
  kvd::sim::describe_figures(app, arguments);
  if (const auto ended = kvd::parse_command_line(app, argc, argv)) return *ended;
  return kvd::sim::dispatch(app, arguments);
}

}  // namespace

int main(int argc, char** argv) {
  kvd::open_standard_descriptors();
  return kvd::status_after_output("kvd-lab", run(argc, argv));
}
