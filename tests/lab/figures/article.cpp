#include <array>
#include <cmath>
#include <limits>

#include "planner/policy/load.hpp"
#include "tests/lab/figures/makers.hpp"
#include "tests/lab/figures/text.hpp"

namespace kvd::sim::figures {
namespace {

using planner::LoadCosts;
using planner::Seconds;

/// A model as the article's arithmetic needs it.
struct Model {
  const char* name;
  double bytes_per_token;
  double flops_per_token;
  double flops_per_pair;
};
constexpr Model k70B{"Llama 3 70B", 327'680, 1.412e11, 2'621'440};
constexpr Model k8B{"Llama 3 8B", 131'072, 1.606e10, 524'288};

// The article's one timed prefill: 72K tokens of a 70B model in 30 s. Both models run on that
// machine.
constexpr double kAnchorTokens = 72e3;
constexpr double kAnchorSeconds = 30;
constexpr double kFlops = (k70B.flops_per_token * kAnchorTokens +
                           k70B.flops_per_pair * kAnchorTokens * kAnchorTokens / 2) /
                          kAnchorSeconds;

struct Tier {
  const char* name;
  double bytes_per_s;
  double latency_s;
};
// The article's rates; the latencies are ours.
constexpr Tier kDram{"DRAM over PCIe", 25e9, 2e-5};
constexpr Tier kRdma{"RDMA 400 Gb/s", 50e9, 1e-4};
constexpr Tier kNvme{"NVMe", 3e9, 1e-3};
constexpr Tier kTcpNfs{"TCP NFS", 0.3e9, 5e-3};

LoadCosts costs_of(const Model& model, double bytes_per_s, double latency_s, double tokens) {
  LoadCosts costs;
  costs.tokens = Tokens(std::llround(tokens));
  costs.bytes = Bytes(std::llround(tokens * model.bytes_per_token));
  costs.bandwidth = BytesPerSecond{bytes_per_s};
  costs.latency = Seconds(latency_s);
  costs.prefill_per_token = Seconds(model.flops_per_token / kFlops);
  costs.prefill_per_token2 = Seconds(model.flops_per_pair / 2 / kFlops);
  return costs;
}

struct Scenario {
  const char* name;
  bool advantage;      ///< the article's verdict
  const char* preset;  ///< the load policy that the verdict asks for
  Model model;
  Tier tier;
  double tokens;      ///< of the prefix
  double comes_back;  ///< share of prompts whose prefix has left HBM and is wanted again
};
const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> kScenarios = {
      {"general chatbot, one-shot prompts", false, "never", k8B, kDram, 500, 0},
      {"team RAG, one shared prefix", false, "never", k8B, kDram, 8000, 0},
      {"TCP NFS", false, "never", k8B, kTcpNfs, 2000, 0.5},
      {"many rotating prefixes", true, "always", k8B, kDram, 8000, 0.5},
      {"70B and more, 10K tokens and more", true, "always", k70B, kRdma, 10000, 0.5},
      {"session migration", true, "always", k8B, kRdma, 8000, 1}};
  return kScenarios;
}

/// Seconds that a request saves because prefixes are kept outside HBM.
double saved(const Scenario& scenario) {
  const auto costs =
      costs_of(scenario.model, scenario.tier.bytes_per_s, scenario.tier.latency_s, scenario.tokens);
  const double n = scenario.tokens;
  return scenario.comes_back * (costs.prefill(n) - costs.load(n)).count();
}

ChartSeries crossovers(const Model& model) {
  ChartSeries series{model.name, {}};
  for (double rate = 0.125e9; rate <= 70e9; rate *= 2) {
    const auto crossover = costs_of(model, rate, 1e-3, 1000).crossover();
    series.points.push_back({rate / 1e9, crossover ? static_cast<double>(*crossover)
                                                   : std::numeric_limits<double>::quiet_NaN()});
  }
  return series;
}

nlohmann::ordered_json curve_json(const ChartSeries& series) {
  nlohmann::ordered_json curve = nlohmann::ordered_json::array();
  for (const ChartPoint& point : series.points) {
    curve.push_back(
        {{"gb_s", point.x},
         {"crossover_tokens", std::isfinite(point.y) ? nlohmann::ordered_json(point.y)
                                                     : nlohmann::ordered_json(nullptr)}});
  }
  return curve;
}

}  // namespace

Result<Figure> article_verdicts(Lab&) {
  Figure figure;
  figure.notes = {
      "Where nothing comes back there is nothing to gain, whatever the link; elsewhere loading "
      "is compared with prefill by kvd's own rule (planner/policy/load.hpp). Prefix lengths and "
      "the share that comes back stand for each scenario and are ours."};
  TextTable table{
      "", {"scenario", "load, s", "prefill, s", "saved a request, s", "kvd starts with"}, {}};
  figure.data["scenarios"] = nlohmann::ordered_json::array();
  for (const Scenario& scenario : scenarios()) {
    const auto costs = costs_of(scenario.model, scenario.tier.bytes_per_s, scenario.tier.latency_s,
                                scenario.tokens);
    const double gain = saved(scenario);
    const std::string preset(scenario.preset);
    const bool ours = gain > 0;
    table.rows.push_back({scenario.name, number_text(costs.load(scenario.tokens).count()),
                          number_text(costs.prefill(scenario.tokens).count()), number_text(gain),
                          preset});
    figure.data["scenarios"].push_back({{"scenario", scenario.name},
                                        {"article", scenario.advantage},
                                        {"ours", ours},
                                        {"preset", preset},
                                        {"saved_s", gain}});
    figure.findings.push_back(
        {std::string(scenario.name) + ": " + (scenario.advantage ? "advantage" : "disadvantage"),
         std::string(ours ? "advantage" : "disadvantage") + ", kvd starts with \"" + preset + "\"",
         agreement(ours == scenario.advantage && (preset != "never") == scenario.advantage)});
  }
  figure.tables = {std::move(table)};
  return figure;
}

Result<Figure> article_crossover(Lab&) {
  Figure figure;
  figure.notes = {
      "Prefill from the article's one timed case (70B, 72K tokens in 30 s), with the quadratic "
      "share of attention; loading at the tier's rate after 1 ms."};
  const auto anchor = costs_of(k70B, kNvme.bytes_per_s, kNvme.latency_s, kAnchorTokens);
  const double load = anchor.load(kAnchorTokens).count();
  const auto series70 = crossovers(k70B);
  const auto series8 = crossovers(k8B);
  const auto at_nfs = [](const Model& model) {
    return costs_of(model, kTcpNfs.bytes_per_s, kTcpNfs.latency_s, 1000).crossover();
  };
  const auto rdma_dram = [](const Model& model, const Tier& tier) {
    return costs_of(model, tier.bytes_per_s, tier.latency_s, 1000).crossover().value_or(-1);
  };
  const auto dram8 = rdma_dram(k8B, kDram);
  const bool larger_earlier = at_nfs(k70B).value_or(INT64_MAX) < at_nfs(k8B).value_or(INT64_MAX);
  figure.findings = {
      {"25 GB at 3 GB/s take 8 s, against 30 s of prefill", number_text(load) + " s",
       agreement(load > 7 && load < 9)},
      {"larger models tilt towards loading",
       "crossover over TCP at " + std::to_string(at_nfs(k70B).value_or(-1)) + " tokens for 70B, " +
           std::to_string(at_nfs(k8B).value_or(-1)) + " for 8B",
       agreement(larger_earlier)},
      {"from DRAM loading wins in most cases", "from " + std::to_string(dram8) + " tokens on (8B)",
       agreement(dram8 >= 0 && dram8 < 500)}};
  figure.charts = {
      {.id = "article-crossover",
       .title = "Length from which loading a prefix beats computing it",
       .description = "The crossover falls with bandwidth, and lies lower for the larger model.",
       .kind = ChartKind::kLines,
       .x_label = "bandwidth of the tier, GB/s",
       .y_label = "crossover, tokens",
       .log_x = true,
       .log_y = true,
       .series = {series70, series8}}};
  figure.data["models"] = {{k70B.name, curve_json(series70)}, {k8B.name, curve_json(series8)}};
  return figure;
}

}  // namespace kvd::sim::figures
