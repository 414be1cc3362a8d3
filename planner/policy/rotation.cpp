#include "planner/policy/rotation.hpp"

#include <algorithm>

namespace kvd::planner {

double virtual_lag(const RotationRequest& request, Seconds now, const RotationConfig& config) {
  constexpr Seconds kZero{0};
  if (request.state == RequestState::kRunning) {
    // Not -(now - t_run): a request that starts now has lag 0, not -0.
    return (request.t_run.value_or(now) - now).count();
  }
  if (request.counts_as_waiting()) {
    const Seconds lag = now - request.t_arr.value_or(now) - config.beta_f * request.ttft_slo;
    return std::max(lag, kZero).count();
  }
  const Seconds lag = now - *request.t_last - config.beta_b * request.tbt_slo;
  return config.alpha * std::max(lag, kZero).count();
}

Seconds fcfs_key(const RotationRequest& request) {
  if (request.t_arr) return *request.t_arr;
  if (request.t_last) return *request.t_last;
  return request.t_run.value_or(Seconds{0});
}

}  // namespace kvd::planner
