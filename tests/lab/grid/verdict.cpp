#include "tests/lab/grid/verdict.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace kvd::sim::grid {
namespace {

using Json = nlohmann::ordered_json;

/// Figures that show why a policy is behind.
constexpr const char* kCauses[] = {
    "ttft_attainment",  "tbt_mean_attainment",   "long_joint_attainment",
    "ttft_p99_s",       "throughput_tps",        "held_back_share",
    "held_back_mean_s", "layerwise_prefills",    "rotations",
    "pauses",           "blocks_moved_per_step", "stall_share",
    "refused",          "longest_raw_gap_s",     "second_gap_share"};

double figure(const Metrics& metrics, std::string_view name) {
  for (const MetricName& metric : metric_names()) {
    if (name == metric.name) return metrics.*metric.figure;
  }
  return 0;
}

/// A figure that is better the smaller it is, relative to the smallest of the others that have one;
/// 1 where none has one.
double by_least_other(const PlayedCell& played, const std::string& policy,
                      double Metrics::*figure) {
  double least = 0;
  for (const auto& [name, other] : played) {
    const double value = other.mean.*figure;
    if (name == policy || value <= 0) continue;
    least = least > 0 ? std::min(least, value) : value;
  }
  return least > 0 ? played.at(policy).mean.*figure / least : 1;
}

}  // namespace

Json cause_of(const Metrics& ours, const Metrics& other) {
  Json out = Json::object();
  for (const char* name : kCauses) {
    const double a = figure(ours, name), b = figure(other, name);
    if (a != 0 || b != 0) out[name] = {a, b};
  }
  return out;
}

Standing standing_of(const Cell& cell, const PlayedCell& played, const std::string& policy) {
  const Played& ours = played.at(policy);
  const Played* best = nullptr;
  Standing out;
  for (const auto& [name, other] : played) {
    if (name == policy) continue;
    if (best != nullptr && other.mean.joint_attainment <= best->mean.joint_attainment) continue;
    best = &other;
    out.best_policy = name;
  }
  out.cell = &cell;
  out.alike = std::all_of(played.begin(), played.end(), [&](const auto& entry) {
    return entry.second.fault.empty() &&
           entry.second.mean.joint_attainment == ours.mean.joint_attainment;
  });
  out.j = ours.mean.joint_attainment;
  out.best = best->mean.joint_attainment;
  const auto fcfs = played.find("fcfs");
  const double reference = fcfs == played.end() ? 0 : fcfs->second.mean.throughput_tps;
  out.tokens = reference > 0 ? ours.mean.throughput_tps / reference : 1;
  out.first_tokens = by_least_other(played, policy, &Metrics::ttft_p99_s);
  out.long_first_tokens = by_least_other(played, policy, &Metrics::long_ttft_p99_s);
  out.cause = ours.fault.empty() ? cause_of(ours.mean, best->mean) : Json{{"fault", ours.fault}};
  return out;
}

Verdict verdict_of(std::vector<Standing> cells, double tolerance) {
  constexpr double kFrom = 0.9, kTo = 1.5;  // as multiples of the knee
  Verdict out;
  double sum = 0, count = 0;
  for (const Standing& standing : cells) {
    const double behind = -standing.lead();
    out.worst = &standing == cells.data() ? behind : std::max(out.worst, behind);
    if (behind > tolerance) out.behind.push_back(standing);
    if (standing.alike) out.alike.push_back(standing);
    if (standing.tokens < kLeastTokens) out.slow.push_back(standing);
    const double late = std::max(standing.first_tokens, standing.long_first_tokens);
    if (standing.cell->load <= 1 && late > kMostLate) out.late.push_back(standing);
    if (standing.cell->load < kFrom || standing.cell->load > kTo) continue;
    sum += standing.lead();
    ++count;
  }
  out.mean_lead = count > 0 ? sum / count : 0;
  std::stable_sort(out.behind.begin(), out.behind.end(),
                   [](const Standing& a, const Standing& b) { return a.lead() < b.lead(); });
  out.cells = std::move(cells);
  return out;
}

namespace {

Json ids_of(const std::vector<Standing>& standings) {
  Json out = Json::array();
  for (const Standing& standing : standings) out.push_back(standing.cell->id);
  return out;
}

}  // namespace

Json json_of(const Verdict& verdict) {
  Json behind = Json::array();
  for (const Standing& standing : verdict.behind) {
    behind.push_back({{"cell", standing.cell->id},
                      {"j", standing.j},
                      {"best", standing.best},
                      {"best_policy", standing.best_policy},
                      {"cause", standing.cause}});
  }
  return {{"cells", verdict.cells.size()},  {"behind", std::move(behind)},
          {"alike", ids_of(verdict.alike)}, {"slow", ids_of(verdict.slow)},
          {"late", ids_of(verdict.late)},   {"mean_lead", verdict.mean_lead},
          {"worst", verdict.worst}};
}

}  // namespace kvd::sim::grid
