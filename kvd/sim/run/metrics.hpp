#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvd/sim/world/result.hpp"

namespace kvd::sim {

/// Shares 0..1 that METRICS.md defines. `raw` counts gaps as generated, the others as delivered
/// through the token deposit.
struct Attainments {
  double ttft_attainment = 0;
  double tbt_attainment = 0;        ///< tokens delivered on time (OrbitFlow)
  double tbt_raw_attainment = 0;    ///< the same over gaps as generated
  double tbt_token_attainment = 0;  ///< gaps of at most the SLO, delivered: the share of all gaps
  double tbt_mean_attainment = 0;   ///< requests whose mean gap meets the SLO
  double tbt_p99gap_attainment = 0;
  double tbt_max_attainment = 0;
  double tpot_attainment = 0;
  double interval_attainment = 0;
  double raw_gap_share = 0;          ///< requests with a raw gap above ten times their SLO
  double joint_attainment = 0;       ///< TTFT and mean TBT
  double long_joint_attainment = 0;  ///< of the longest tenth of prompts
  double ttft_tpot_attainment = 0;   ///< TTFT and TPOT (LayerKV counts the others as violations)
};

/// The longest wait for a token after the first, as METRICS.md defines it.
struct LongestGaps {
  double longest_gap_p99_s = 0, longest_gap_max_s = 0;  ///< over requests, as delivered
  double longest_raw_gap_s = 0;                         ///< of all requests, as generated
  double second_gap_share = 0;                          ///< requests with a raw gap above a second
};

/// The figures that METRICS.md defines.
struct Metrics : Attainments, LongestGaps {
  double requests = 0, finished = 0, duration_s = 0;
  double missed_intervals = 0;
  double ttft_mean_s = 0, ttft_p50_s = 0, ttft_p95_s = 0, ttft_p99_s = 0, ttft_max_s = 0;
  double long_ttft_p99_s = 0;  ///< of the longest tenth of prompts
  double tbt_mean_s = 0, tbt_p50_s = 0, tbt_p95_s = 0, tbt_p99_s = 0;
  double tpot_mean_s = 0, tpot_p99_s = 0;
  double queue_mean_s = 0;  ///< arrival to the start of the first iteration
  double held_back_share = 0, held_back_mean_s = 0;  ///< prompts that kvd did not let run
  double throughput_rps = 0, throughput_tps = 0, goodput_rps = 0;
  double e2e_mean_s = 0, e2e_p99_s = 0;
  double hbm_use = 0, hbm_transit_share = 0, dram_use = 0, link_use_h2d = 0, link_use_d2h = 0;
  double planner_share = 0, stall_share = 0;
  double blocks_moved_per_step = 0, blocks_synced_per_step = 0;
  double layerwise_prefills = 0;
  double pauses = 0, rotations = 0, iterations = 0, refused = 0;
  double prefix_repeats = 0;
};

[[nodiscard]] Metrics measure(const RunResult& result);

/// What the user of one request saw, behind the token deposit.
struct Delivery {
  std::vector<TimePoint> times;  ///< when each token reached the user
  std::int64_t late = 0;         ///< tokens that were due but not there
};
[[nodiscard]] Delivery deliver(const RequestRecord& record);

/// The figures by their JSON names, in the order in which they are printed.
struct MetricName {
  const char* name;
  double Metrics::*figure;
  bool compared;  ///< `compare` and `reproduce` print it
  /// It says what the machine did for all requests; the other figures are sums over requests.
  bool of_machine = false;
};
[[nodiscard]] const std::vector<MetricName>& metric_names();

/// Means over seeds, and the least and greatest of each figure.
struct Summary {
  std::string policy;
  std::size_t seeds = 0;
  Metrics mean, low, high;
  /// The same for parts of the requests: those of an engine, or those with equal goals. What the
  /// machine did is 0 there.
  std::vector<Summary> parts;
};
[[nodiscard]] Summary summarize(std::string policy, const std::vector<Metrics>& runs);

}  // namespace kvd::sim
