#include <algorithm>
#include <cmath>

#include "tests/lab/figures/layerkv_setting.hpp"
#include "tests/lab/figures/makers.hpp"
#include "tests/lab/figures/orbitflow_setting.hpp"
#include "tests/lab/figures/superinfer_setting.hpp"
#include "tests/lab/figures/text.hpp"

/// `unified` against each system's own policy on that system's workload, every statistic side by
/// side. Where it is behind, the text says which part of its figure is.
namespace kvd::sim::figures {
namespace {

using Field = double Metrics::*;

/// A system's ground: the figure that counts there, and the parts that it consists of.
struct Ground {
  std::string name;
  std::vector<Field> counts;
  std::vector<std::string> labels;  ///< of `counts`
  GridResult result;
};

/// The best of the policies other than unified.
const Summary& best_other(const GridResult& result, std::size_t x, Field figure) {
  const auto& row = result.rows[x];
  return *std::max_element(row.begin(), std::prev(row.end()), [&](const auto& a, const auto& b) {
    return a.mean.*figure < b.mean.*figure;
  });
}

struct Part {
  const char* name;
  Field figure;
};
constexpr Part kParts[] = {{"TTFT attainment", &Metrics::ttft_attainment},
                           {"mean gap attainment", &Metrics::tbt_mean_attainment},
                           {"TPOT attainment", &Metrics::tpot_attainment},
                           {"tokens delivered in time", &Metrics::tbt_token_attainment},
                           {"throughput, req/s", &Metrics::throughput_rps},
                           {"time in the queue, s", &Metrics::queue_mean_s},
                           {"stalls, share of time", &Metrics::stall_share},
                           {"blocks moved a step", &Metrics::blocks_moved_per_step},
                           {"HBM in use", &Metrics::hbm_use}};

/// The statistics that differ most between the two.
std::vector<std::string> anatomy(const std::string& where, const Summary& ours,
                                 const Summary& theirs) {
  std::vector<std::string> row = {where, theirs.policy};
  for (const Part& part : kParts) {
    row.push_back(number_text(ours.mean.*part.figure) + " / " +
                  number_text(theirs.mean.*part.figure));
  }
  return row;
}

TextTable anatomy_table() {
  TextTable table{"Where unified is behind by more than 2 points: unified / the best other",
                  {"point", "best other"},
                  {}};
  for (const Part& part : kParts) table.head.emplace_back(part.name);
  return table;
}

constexpr double kBehind = 0.02;

void judge(const Ground& ground, Figure& figure, TextTable& losses) {
  const GridResult& result = ground.result;
  for (std::size_t c = 0; c < ground.counts.size(); ++c) {
    const Field field = ground.counts[c];
    double least = 1;
    std::string text;
    for (std::size_t x = 0; x < result.grid.xs.size(); ++x) {
      const Summary& ours = result.rows[x].back();
      const Summary& theirs = best_other(result, x, field);
      const double lead = ours.mean.*field - theirs.mean.*field;
      least = std::min(least, lead);
      const std::string at = number_text(result.grid.xs[x]);
      text += (text.empty() ? "" : ", ") + points(lead) + " at " + at;
      if (lead >= -kBehind) continue;
      losses.rows.push_back(
          anatomy(ground.name + ", " + ground.labels[c] + ", " + at, ours, theirs));
    }
    figure.findings.push_back({ground.name +
                                   ": is unified at most 2 points behind the best other, " +
                                   ground.labels[c] + "?",
                               text, agreement(least >= -kBehind)});
  }
}

/// Every statistic of the ground's last but one point, with a row for each policy.
TextTable side_by_side(const Ground& ground, std::size_t x) {
  const GridResult& result = ground.result;
  TextTable table{ground.name + ", " + result.grid.x_label + " " + number_text(result.grid.xs[x]),
                  {"policy"},
                  {}};
  for (const MetricName& metric : metric_names()) {
    if (metric.compared) table.head.emplace_back(metric.name);
  }
  for (const Summary& summary : result.rows[x]) {
    table.rows.push_back({summary.policy});
    for (const MetricName& metric : metric_names()) {
      if (metric.compared) table.rows.back().push_back(number_text(summary.mean.*metric.figure));
    }
  }
  return table;
}

Result<Ground> layerkv_ground(Lab& lab) {
  const Grid grid{"beyond-unified-layerkv",
                  std::string(kLlama) + ", ShareGPT lengths, 120 s",
                  "rate",
                  "requests a second",
                  {"whole_request", "layerkv_literal", "layerkv", "unified"},
                  {4, 5.5, 6, 7},
                  [](const std::string& policy, double x) {
                    return as_clients_announce(layerkv_trial(kLlama, policy, x));
                  }};
  KVD_ASSIGN_OR_RETURN(auto result, measure_grid(lab, grid));
  return Ground{
      "LayerKV's ground", {&Metrics::joint_attainment}, {"TTFT and mean TBT"}, std::move(result)};
}

Result<Ground> superinfer_ground(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const double knee, superinfer_knee(lab, kQwen));
  const Grid grid{"beyond-unified-superinfer",
                  kSuperInferUnit,
                  "times_knee",
                  "request rate, multiples of FCFS's knee",
                  {"fcfs", "ltr", "past_future", "si_code", "lvf", "unified"},
                  {0.8, 1.0, 1.2, 1.3, 1.4, 1.6},
                  [knee](const std::string& policy, double x) {
                    return as_clients_announce(superinfer_trial(kQwen, policy, x * knee));
                  }};
  KVD_ASSIGN_OR_RETURN(auto result, measure_grid(lab, grid));
  return Ground{"SuperInfer's ground",
                {&Metrics::joint_attainment},
                {"TTFT and mean TBT"},
                std::move(result)};
}

Result<Ground> orbitflow_ground(Lab& lab) {
  const Grid grid{"beyond-unified-orbitflow",
                  kOrbitFlowUnit,
                  "slo_scale",
                  "SLO scale",
                  {"flexgen_plus", "dynamic_heuristic", "orbitflow", "unified"},
                  {1, 1.5, 2.5},
                  [](const std::string& policy, double x) {
                    return as_clients_announce(orbitflow_trial(policy, x));
                  }};
  KVD_ASSIGN_OR_RETURN(auto result, measure_grid(lab, grid));
  return Ground{"OrbitFlow's ground",
                {&Metrics::tbt_attainment, &Metrics::tpot_attainment},
                {"TBT", "TPOT"},
                std::move(result)};
}

}  // namespace

Result<Figure> beyond_unified(Lab& lab) {
  Figure figure;
  figure.beyond = true;
  figure.notes = {
      "All policies of one ground have the same prompt tokens an iteration, memory, link and "
      "requests. Where unified is behind, the last table shows its figure taken apart beside the "
      "best other's: which of the parts is lower, and what the machine did."};
  TextTable losses = anatomy_table();
  figure.data = {{"figure", "beyond-unified"}, {"grounds", nlohmann::ordered_json::array()}};
  for (auto* make : {layerkv_ground, superinfer_ground, orbitflow_ground}) {
    KVD_ASSIGN_OR_RETURN(const Ground ground, make(lab));
    judge(ground, figure, losses);
    figure.tables.push_back(side_by_side(ground, ground.result.grid.xs.size() / 2));
    for (std::size_t c = 0; c < ground.counts.size(); ++c) {
      const std::string id = ground.result.grid.figure + "-" + std::to_string(c);
      figure.charts.push_back(chart_of(ground.result, {id, ground.name + ": " + ground.labels[c],
                                                       "attainment", ground.counts[c]}));
    }
    figure.data["grounds"].push_back(json_of(ground.result));
  }
  if (!losses.rows.empty()) figure.tables.push_back(std::move(losses));
  return figure;
}

}  // namespace kvd::sim::figures
