#include "tests/lab/bench/benefit_figures.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/lab/bench/print.hpp"

namespace kvd::bench {
namespace {

using Json = nlohmann::ordered_json;

double sum_of(const PolicyRuns& runs, const char* name) {
  double sum = 0;
  for (const auto& run : runs.runs) sum += value_of(run, name);
  return sum;
}

Json as_json(const PolicyRuns& runs) {
  const auto means = runs.means();
  Json by_seed = Json::array();
  for (const auto& run : runs.runs) by_seed.push_back(value_of(run, "within_slo"));
  return {{"requests", sum_of(runs, "requests")},
          {"within_slo", sum_of(runs, "within_slo")},
          {"within_slo_by_seed", by_seed},
          {"ttft_p95_s", value_of(means, "ttft_p95")},
          {"tbt_p95_s", value_of(means, "tbt_p95")},
          {"tokens_per_s", value_of(means, "throughput")},
          {"iteration_s", value_of(means, "iteration")},
          {"rotations_out", sum_of(runs, "rotations_out")}};
}

void print_row(std::string& out, const char* name, const char* unit, double halves, double kvd) {
  print(out, "  %-24s %12.0f %12.0f  %s\n", name, halves, kvd, unit);
}

/// Draws `filled` of `whole` as a bar of 40 characters.
std::string bar(double filled, double whole) {
  constexpr int kWidth = 40;
  const int full = whole > 0 ? static_cast<int>(std::lround(kWidth * filled / whole)) : 0;
  std::string out;
  for (int i = 0; i < kWidth; ++i) out += i < full ? "█" : "░";
  return out;
}

void print_bars(std::string& out, const PolicyRuns& runs, std::size_t seed) {
  const double within = value_of(runs.runs[seed], "within_slo");
  const double requests = value_of(runs.runs[seed], "requests");
  print(out, "  %-6s %s %3.0f of %.0f\n", runs.policy.c_str(), bar(within, requests).c_str(),
        within, requests);
}

}  // namespace

double more_within_slo(const BenefitRuns& runs) {
  return (sum_of(runs.kvd, "within_slo") - sum_of(runs.halves, "within_slo")) /
         static_cast<double>(runs.kvd.runs.size());
}

bool never_fewer(const BenefitRuns& runs) {
  for (std::size_t i = 0; i < runs.kvd.runs.size(); ++i) {
    if (value_of(runs.kvd.runs[i], "within_slo") < value_of(runs.halves.runs[i], "within_slo")) {
      return false;
    }
  }
  return true;
}

bool machine_was_busy(const BenefitStage& stage, const BenefitRuns& runs) {
  const double longest =
      std::max(value_of(runs.halves.means(), "iteration"), value_of(runs.kvd.means(), "iteration"));
  return stage.serve.iteration_ms > 0 && longest > 1.2 * stage.serve.iteration_ms / 1000;
}

std::string benefit_json(const BenefitStage& stage, const BenefitRuns& runs) {
  const ServeStage& serve = stage.serve;
  const Json out = {{"halves", as_json(runs.halves)},
                    {"kvd", as_json(runs.kvd)},
                    {"seeds", runs.kvd.runs.size()},
                    {"more_within_slo_mean", more_within_slo(runs)},
                    {"never_fewer", never_fewer(runs)},
                    {"pace", stage.pace},
                    {"machine_was_busy", machine_was_busy(stage, runs)},
                    {"load",
                     {{"model", serve.model},
                      {"seconds", serve.seconds},
                      {"phase_s", stage.phase_s},
                      {"busy_requests_per_s", stage.busy_rate},
                      {"quiet_requests_per_s", stage.quiet_rate},
                      {"prompt_tokens", {serve.prompt_min, serve.prompt_max}},
                      {"new_tokens", {serve.new_min, serve.new_max}},
                      {"least_iteration_s", serve.iteration_ms / 1000},
                      {"hbm_bytes", std::uint64_t{stage.hbm_mib} << 20},
                      {"dram_bytes", std::uint64_t{stage.dram_mib} << 20},
                      {"link", serve.bandwidth}}},
                    {"slo", {{"ttft_s", stage.goals.ttft_s}, {"tbt_s", stage.goals.tbt_s}}}};
  return out.dump(2);
}

std::string benefit_text(const BenefitStage& stage, const BenefitRuns& runs) {
  const auto halves = runs.halves.means(), kvd = runs.kvd.means();
  std::string out;
  print(out, "  %-24s %12s %12s\n", "", "halves", "one kvd");
  print_row(out, "requests within SLO", "of", sum_of(runs.halves, "within_slo"),
            sum_of(runs.kvd, "within_slo"));
  out.back() = ' ';
  print(out, "%.0f\n", sum_of(runs.kvd, "requests"));
  print_row(out, "P95 TTFT", "ms", 1e3 * value_of(halves, "ttft_p95"),
            1e3 * value_of(kvd, "ttft_p95"));
  print_row(out, "P95 TBT", "ms", 1e3 * value_of(halves, "tbt_p95"),
            1e3 * value_of(kvd, "tbt_p95"));
  print_row(out, "tokens a second", "", value_of(halves, "throughput"),
            value_of(kvd, "throughput"));
  print_row(out, "rotations out", "", sum_of(runs.halves, "rotations_out"),
            sum_of(runs.kvd, "rotations_out"));
  print(out, "  %-24s %12.1f %12.1f  ms, %.1f at least\n", "an iteration, mean",
        1e3 * value_of(halves, "iteration"), 1e3 * value_of(kvd, "iteration"),
        stage.serve.iteration_ms);
  if (stage.pace > 1) {
    print(out,
          "\n  This machine's CPUs are slow or busy, so all was played %.2f times as slow: goals "
          "are\n"
          "  TTFT %.0f ms and TBT %.0f ms, and the link has %s a second.\n",
          stage.pace, 1e3 * stage.goals.ttft_s, 1e3 * stage.goals.tbt_s,
          stage.serve.bandwidth.c_str());
  }
  if (machine_was_busy(stage, runs)) {
    out +=
        "\n  THIS MACHINE WAS TOO BUSY: iterations took over a fifth longer than they are meant "
        "to, so\n"
        "  requests were late for want of a CPU, not of memory. Run it again on two idle cores.\n";
  }
  out += "\n  requests within SLO, seed by seed\n";
  for (std::size_t seed = 0; seed < runs.kvd.runs.size(); ++seed) {
    print_bars(out, runs.halves, seed);
    print_bars(out, runs.kvd, seed);
    out += "\n";
  }
  return out;
}

}  // namespace kvd::bench
