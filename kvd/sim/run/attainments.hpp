#pragma once

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

}  // namespace kvd::sim
