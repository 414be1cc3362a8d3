#pragma once

#include <cstdint>
#include <vector>

#include "planner/policy/rotation.hpp"

namespace kvd::planner::testing {

using Indices = std::vector<std::uint32_t>;
inline constexpr Seconds kNow{10};

inline RotationRequest waiting(std::int64_t bytes, double t_arr) {
  RotationRequest request;
  request.state = RequestState::kWaiting;
  request.bytes = Bytes(bytes);
  request.t_arr = Seconds(t_arr);
  return request;
}

inline RotationRequest rotary(std::int64_t bytes, double t_last) {
  RotationRequest request;
  request.state = RequestState::kRotary;
  request.bytes = Bytes(bytes);
  request.t_last = Seconds(t_last);
  return request;
}

inline RotationRequest running(std::int64_t bytes, double t_run) {
  RotationRequest request;
  request.state = RequestState::kRunning;
  request.bytes = Bytes(bytes);
  request.t_run = Seconds(t_run);
  return request;
}

inline RotationSnapshot snapshot(std::int64_t b_hbm, std::int64_t b_xfer,
                                 std::vector<RotationRequest> requests) {
  RotationSnapshot made;
  made.b_hbm = Bytes(b_hbm);
  made.b_xfer = Bytes(b_xfer);
  made.requests = std::move(requests);
  return made;
}

}  // namespace kvd::planner::testing
