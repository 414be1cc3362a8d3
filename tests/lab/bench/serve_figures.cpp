#include "tests/lab/bench/serve_figures.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace kvd::bench {
namespace {

using Json = nlohmann::ordered_json;

/// The lateness that a client on a busy machine sees of a timer that fired in time.
double tolerance_s(double goal_s) { return std::max(0.001, 0.1 * goal_s); }

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

double percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = percent / 100 * static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(std::lround(at))];
}

/// The times at the clients.
struct Seen {
  std::vector<double> ttft, tbt, tpot;
  double ttft_met = 0, tbt_met = 0, tpot_met = 0, within = 0;
  double tokens = 0, complete = 0, late_s = 0, missed_intervals = 0, longest_gap_s = 0;
};

void add(Seen& seen, const ServeAnswer& answer, const Goals& goals) {
  const std::vector<double>& times = answer.token_s;
  seen.complete += answer.complete ? 1 : 0;
  seen.tokens += static_cast<double>(times.size());
  if (times.empty()) return;  // counts against every attainment
  seen.ttft.push_back(times.front() - answer.sent_s);
  const bool ttft_met = seen.ttft.back() <= goals.ttft_s;
  seen.ttft_met += ttft_met ? 1 : 0;
  const double allowed = goals.tbt_s + tolerance_s(goals.tbt_s);
  for (std::size_t i = 1; i < times.size(); ++i) {
    const double gap = times[i] - times[i - 1];
    seen.tbt.push_back(gap);
    seen.longest_gap_s = std::max(seen.longest_gap_s, gap);
    if (gap <= allowed) {
      ++seen.tbt_met;
    } else {
      seen.late_s += gap - goals.tbt_s;
      seen.missed_intervals += std::floor(gap / goals.tbt_s);
    }
  }
  const auto gaps = static_cast<double>(times.size() - 1);
  seen.tpot.push_back(gaps > 0 ? (times.back() - times.front()) / gaps : 0);
  const bool tpot_met = seen.tpot.back() <= allowed;
  seen.tpot_met += tpot_met ? 1 : 0;
  seen.within += answer.complete && ttft_met && tpot_met ? 1 : 0;
}

Json as_json(const std::vector<Figure>& figures) {
  Json out = Json::object();
  for (const Figure& figure : figures) out[figure.name] = figure.value;
  return out;
}

}  // namespace

double value_of(const std::vector<Figure>& figures, std::string_view name) {
  const auto found = std::find_if(figures.begin(), figures.end(),
                                  [&](const Figure& one) { return one.name == name; });
  return found->value;
}

std::vector<Figure> figures_of(const ServeRun& run, const Goals& goals) {
  Seen seen;
  for (const ServeAnswer& answer : run.answers) add(seen, answer, goals);
  const auto requests = static_cast<double>(run.answers.size());
  const auto late = static_cast<double>(seen.tbt.size()) - seen.tbt_met;
  const auto iterations = static_cast<double>(run.iterations);
  const auto raw = [](std::uint64_t met, std::uint64_t missed) {
    return share(static_cast<double>(met), static_cast<double>(met + missed));
  };
  return {
      {"ttft_attainment", "", share(seen.ttft_met, requests)},
      {"tbt_attainment", "", share(seen.tbt_met, static_cast<double>(seen.tbt.size()))},
      {"tpot_attainment", "", share(seen.tpot_met, requests)},
      {"ttft_p50", "s", percentile(seen.ttft, 50)},
      {"ttft_p95", "s", percentile(seen.ttft, 95)},
      {"ttft_p99", "s", percentile(seen.ttft, 99)},
      {"tbt_p50", "s", percentile(seen.tbt, 50)},
      {"tbt_p95", "s", percentile(seen.tbt, 95)},
      {"tbt_p99", "s", percentile(seen.tbt, 99)},
      {"tpot_p95", "s", percentile(seen.tpot, 95)},
      {"tpot_p99", "s", percentile(seen.tpot, 99)},
      {"throughput", "token/s", share(seen.tokens, run.wall_s)},
      {"stalls", "token", late},
      {"stalled", "s", seen.late_s},
      {"missed_intervals", "", seen.missed_intervals},
      {"longest_gap", "s", seen.longest_gap_s},
      {"requests", "", requests},
      {"unfinished", "", requests - seen.complete},
      {"raw_ttft_attainment", "", raw(run.raw_ttft_met, run.raw_ttft_missed)},
      {"raw_tbt_attainment", "", raw(run.raw_tbt_met, run.raw_tbt_missed)},
      {"rotations_out", "", static_cast<double>(run.rotations_out)},
      {"rotations_in", "", static_cast<double>(run.rotations_in)},
      {"bytes_in", "B", run.bytes_in},
      {"bytes_out", "B", run.bytes_out},
      {"iterations", "", iterations},
      {"iterations_waited", "", static_cast<double>(run.waited)},
      {"waited_share", "", share(static_cast<double>(run.waited), iterations)},
      {"waited", "s", run.waiting_s},
      {"steps", "", static_cast<double>(run.steps)},
      {"control_cpu_per_step", "us",
       1e6 * share(run.control_cpu_s, static_cast<double>(run.steps))},
      {"control_share", "", share(run.control_cpu_s, run.iterating_s)},
      {"iteration", "s", share(run.iterating_s, iterations)},
      {"within_slo", "", seen.within},
  };
}

std::vector<Figure> PolicyRuns::means() const {
  std::vector<Figure> out = runs.front();
  for (std::size_t i = 0; i < out.size(); ++i) {
    double sum = 0;
    for (const auto& run : runs) sum += run[i].value;
    out[i].value = sum / static_cast<double>(runs.size());
  }
  return out;
}

std::string serve_json(const ServeStage& stage, const Goals& goals,
                       const std::vector<PolicyRuns>& policies) {
  Json out;
  out["stage"] = {{"model", stage.model},
                  {"engines", stage.engines},
                  {"layers_per_block", stage.layers_per_block},
                  {"hbm", stage.hbm},
                  {"dram", stage.dram},
                  {"bandwidth", stage.bandwidth},
                  {"seconds", stage.seconds},
                  {"requests_per_s", stage.rate},
                  {"prompt_tokens", {stage.prompt_min, stage.prompt_max}},
                  {"new_tokens", {stage.new_min, stage.new_max}}};
  out["goals"] = {{"ttft_s", goals.ttft_s},
                  {"tbt_s", goals.tbt_s},
                  {"ttft_multiple", stage.ttft_multiple},
                  {"tbt_multiple", stage.tbt_multiple}};
  for (const PolicyRuns& policy : policies) {
    Json runs = Json::array();
    for (const auto& run : policy.runs) runs.push_back(as_json(run));
    out["policies"][policy.policy] = {{"mean", as_json(policy.means())}, {"runs", runs}};
  }
  return out.dump(2);
}

}  // namespace kvd::bench
