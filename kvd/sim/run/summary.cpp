#include <algorithm>

#include "kvd/sim/run/metrics.hpp"

/// The names of the figures, and how several runs are summarized.
namespace kvd::sim {

const std::vector<MetricName>& metric_names() {
  using M = Metrics;
  static const std::vector<MetricName> kNames = {
      {"ttft_attainment", &M::ttft_attainment, true},
      {"tbt_attainment", &M::tbt_attainment, true},
      {"tbt_mean_attainment", &M::tbt_mean_attainment, true},
      {"tpot_attainment", &M::tpot_attainment, true},
      {"ttft_mean_s", &M::ttft_mean_s, true},
      {"ttft_p99_s", &M::ttft_p99_s, true},
      {"tbt_p95_s", &M::tbt_p95_s, true},
      {"tbt_p99_s", &M::tbt_p99_s, true},
      {"throughput_rps", &M::throughput_rps, true},
      {"e2e_mean_s", &M::e2e_mean_s, true},
      {"joint_attainment", &M::joint_attainment, true},
      {"tbt_token_attainment", &M::tbt_token_attainment, true},
      {"tbt_p99gap_attainment", &M::tbt_p99gap_attainment, true},
      {"tbt_max_attainment", &M::tbt_max_attainment, true},
      {"interval_attainment", &M::interval_attainment, true},
      {"longest_gap_p99_s", &M::longest_gap_p99_s, true},
      {"blocks_moved_per_step", &M::blocks_moved_per_step, true, true},
      {"hbm_transit_share", &M::hbm_transit_share, true, true},
      {"missed_intervals", &M::missed_intervals, true},
      {"raw_gap_share", &M::raw_gap_share, true},
      {"ttft_p50_s", &M::ttft_p50_s, true},
      {"ttft_max_s", &M::ttft_max_s, true},
      {"long_joint_attainment", &M::long_joint_attainment, true},
      {"long_ttft_p99_s", &M::long_ttft_p99_s, true},
      {"throughput_tps", &M::throughput_tps, true},
      {"held_back_share", &M::held_back_share, true},
      {"held_back_mean_s", &M::held_back_mean_s, true},
      {"layerwise_prefills", &M::layerwise_prefills, true, true},
      {"longest_raw_gap_s", &M::longest_raw_gap_s, true},
      {"second_gap_share", &M::second_gap_share, true},
      {"tbt_raw_attainment", &M::tbt_raw_attainment, false},
      {"ttft_tpot_attainment", &M::ttft_tpot_attainment, false},
      {"ttft_p95_s", &M::ttft_p95_s, false},
      {"tbt_mean_s", &M::tbt_mean_s, false},
      {"tbt_p50_s", &M::tbt_p50_s, false},
      {"tpot_mean_s", &M::tpot_mean_s, false},
      {"tpot_p99_s", &M::tpot_p99_s, false},
      {"queue_mean_s", &M::queue_mean_s, false},
      {"longest_gap_max_s", &M::longest_gap_max_s, false},
      {"goodput_rps", &M::goodput_rps, false},
      {"e2e_p99_s", &M::e2e_p99_s, false},
      {"hbm_use", &M::hbm_use, false, true},
      {"dram_use", &M::dram_use, false, true},
      {"link_use_h2d", &M::link_use_h2d, false, true},
      {"link_use_d2h", &M::link_use_d2h, false, true},
      {"planner_share", &M::planner_share, false, true},
      {"stall_share", &M::stall_share, false, true},
      {"blocks_synced_per_step", &M::blocks_synced_per_step, false, true},
      {"pauses", &M::pauses, false, true},
      {"rotations", &M::rotations, false, true},
      {"iterations", &M::iterations, false, true},
      {"requests", &M::requests, false},
      {"finished", &M::finished, false},
      {"refused", &M::refused, false, true},
      {"prefix_repeats", &M::prefix_repeats, false, true},
      {"duration_s", &M::duration_s, false, true},
  };
  return kNames;
}

Summary summarize(std::string policy, const std::vector<Metrics>& runs) {
  Summary out{std::move(policy), runs.size(), {}, {}, {}, {}};
  if (runs.empty()) return out;
  for (const MetricName& metric : metric_names()) {
    double sum = 0, low = runs.front().*metric.figure, high = low;
    for (const Metrics& run : runs) {
      const double value = run.*metric.figure;
      sum += value;
      low = std::min(low, value);
      high = std::max(high, value);
    }
    out.mean.*metric.figure = sum / static_cast<double>(runs.size());
    out.low.*metric.figure = low;
    out.high.*metric.figure = high;
  }
  return out;
}

}  // namespace kvd::sim
