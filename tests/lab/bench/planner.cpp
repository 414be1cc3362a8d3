// Placement plans over drawn batches: CPU time, and the gap to a long run of the same solver.
#include <cstdio>

#include "planner/solver/placement_solver.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/planner_instances.hpp"

namespace kvd::bench::planner_benchmark {
namespace {

using namespace planner;

struct Options {
  std::int32_t layers;
  int requests;
  int instances;
  double budget_ms;
  BufferRule buffer;
  std::uint64_t seed;
  double reference_ms;
};

struct Figures {
  std::vector<double> times_ms;
  std::vector<double> gaps;
  int proved = 0;
  int bound_violations = 0;
  int feasibility_mismatches = 0;
};

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(std::ceil(q * last))];
}

Nanoseconds from_ms(double ms) { return Nanoseconds(static_cast<std::int64_t>(ms * 1e6)); }

// If anything fits, all requests fit when they are offloaded whole.
bool fits_at_all(const PlacementProblem& problem) {
  Blocks sum;
  for (const auto blocks : problem.blocks) sum += blocks;
  return sum <= problem.capacity;
}

void measure(const PlacementProblem& problem, const Options& options, Figures& figures) {
  const ThreadCpuClock clock;
  SolveLimits limits;
  limits.time = from_ms(options.budget_ms);
  const auto begin = clock.now();
  const auto plan = *solve_placement(problem, limits, clock);
  figures.times_ms.push_back(to_seconds(clock.now() - begin) * 1e3);

  limits.tolerance = 0.0001;
  limits.time = from_ms(options.reference_ms);
  const auto reference = *solve_placement(problem, limits, clock);
  if (plan.choice.empty() == fits_at_all(problem)) ++figures.feasibility_mismatches;
  if (plan.choice.empty()) return;
  const double best = std::min(plan.latency, reference.latency).count();
  figures.gaps.push_back(plan.latency.count() / best - 1);
  if (plan.proved) ++figures.proved;
  if (plan.lower_bound.count() > best + kTieSeconds) ++figures.bound_violations;
}

long resident_bytes() {
  long pages = 0, resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident * 4096;
}

long growth_over_plans(const Options& options) {
  std::mt19937_64 random(options.seed);
  SolveLimits limits;
  limits.nodes = 2;
  const ThreadCpuClock clock;
  long before = 0;
  for (int i = 0; i < 11'000; ++i) {
    if (i == 1'000) before = resident_bytes();
    const auto problem =
        draw_instance(random, options.layers, std::min(options.requests, 4), options.buffer);
    if (!solve_placement(problem, limits, clock).ok()) return -1;
  }
  return resident_bytes() - before;
}

int run(const Arguments& arguments) {
  Options options{};
  options.layers = static_cast<std::int32_t>(arguments.number("--layers", 32));
  options.requests = static_cast<int>(arguments.number("--requests", 8));
  options.instances = static_cast<int>(arguments.number("--instances", 200));
  options.budget_ms = arguments.number("--budget-ms", options.requests <= 16 ? 10 : 50);
  options.seed = static_cast<std::uint64_t>(arguments.number("--seed", 1));
  options.reference_ms = arguments.number("--reference-ms", 300);
  const bool eq1 = arguments.text("--buffer") == "eq1";
  options.buffer = eq1 ? BufferRule::kEq1 : BufferRule::kStrict;
  if (options.layers < 2 || options.layers > 1024 || options.requests < 1 ||
      options.instances < 1) {
    std::fprintf(stderr, "kvd-bench: planner needs 2..1024 layers, a request and an instance\n");
    return 2;
  }
  Figures figures;
  std::mt19937_64 random(options.seed);
  for (int i = 0; i < options.instances; ++i) {
    measure(draw_instance(random, options.layers, options.requests, options.buffer), options,
            figures);
  }
  std::printf(
      "{\"median_ms\":%.4f,\"p99_ms\":%.4f,\"gap_median\":%.6f,\"gap_p99\":%.6f,"
      "\"proved_fraction\":%.4f,\"bound_violations\":%d,\"feasibility_mismatches\":%d,"
      "\"rss_growth_bytes\":%ld}\n",
      quantile(figures.times_ms, 0.5), quantile(figures.times_ms, 0.99),
      quantile(figures.gaps, 0.5), quantile(figures.gaps, 0.99),
      static_cast<double>(figures.proved) / options.instances, figures.bound_violations,
      figures.feasibility_mismatches, growth_over_plans(options));
  return 0;
}

const Registration registration{
    {"planner",
     "placement plans: --layers --requests --instances --budget-ms --buffer strict|eq1 --seed",
     run}};

}  // namespace
}  // namespace kvd::bench::planner_benchmark
