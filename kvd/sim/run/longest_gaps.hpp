#pragma once

namespace kvd::sim {

/// The longest wait for a token after the first, as METRICS.md defines it.
struct LongestGaps {
  double longest_gap_p99_s = 0, longest_gap_max_s = 0;  ///< over requests, as delivered
  double longest_raw_gap_s = 0;                         ///< of all requests, as generated
  double second_gap_share = 0;                          ///< requests with a raw gap above a second
};

}  // namespace kvd::sim
