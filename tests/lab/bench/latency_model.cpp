// One evaluation of T_batch over D(L) at several depths and batch sizes; the limits are absolute.
#include <chrono>
#include <random>

#include "planner/model/candidates.hpp"
#include "tests/lab/bench/bench.hpp"

namespace kvd::bench::latency_model_benchmark {
namespace {

using namespace planner;

std::vector<std::vector<std::int32_t>> patterns(std::int32_t layers) {
  std::vector<std::vector<std::int32_t>> all;
  for (auto& c : candidates(layers, CandidateSet::kDistances, BufferRule::kStrict)) {
    all.push_back(std::move(c.offloaded));
  }
  return all;
}

std::vector<std::vector<double>> loads(std::size_t patterns, int requests) {
  std::mt19937_64 random(1);
  std::vector<std::vector<double>> all(64, std::vector<double>(patterns, 0.0));
  for (auto& load : all) {
    for (int r = 0; r < requests; ++r)
      load[random() % patterns] += static_cast<double>(1 + random() % 40);
  }
  return all;
}

double median_us(std::int32_t layers, int requests) {
  // A link that makes stalls common without deciding everything.
  const StepModel model{std::vector<Seconds>(static_cast<std::size_t>(layers), Seconds(1e-3)),
                        Seconds(1e-3 / (10 * requests)), Seconds(0)};
  PatternLatency latency(model, patterns(layers));
  const auto cases = loads(latency.patterns(), requests);
  std::vector<double> times;
  double sum = 0;
  for (int round = 0; round < 201; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& load : cases) sum += latency.evaluate(load);
    const auto end = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(end - begin).count() / 64);
  }
  return sum > 0 ? median(std::move(times)) : -1;
}

int run(const Arguments& arguments) {
  std::vector<Row> rows;
  for (const int layers : {32, 64, 80}) {
    for (const int requests : {1, 4, 16, 64, 256}) {
      const auto name = "L" + std::to_string(layers) + "_R" + std::to_string(requests);
      rows.push_back({name, median_us(layers, requests), {}, {}, "us"});
    }
  }
  return print_rows(rows, arguments.json);
}

const Registration registration{
    {"latency-model", "one evaluation of the step latency, by layers and requests", run}};

}  // namespace
}  // namespace kvd::bench::latency_model_benchmark
