#pragma once

#include <limits>

#include "planner/policy/rotation.hpp"

namespace kvd::planner {

inline constexpr Bytes kUnlimited{std::numeric_limits<std::int64_t>::max()};

/// The share of the tokens that engines make which requests that have started may need. What is
/// left is saved up: without it turns get ever shorter, and moving requests uses up all that there
/// was to save.
inline constexpr double kPromised = 0.85;

/// No request leaves in the midst of prefill, or before it has made a token since it came in:
/// moving it in and out without a token gains nothing, again and again. Nor does a request leave
/// whose return would cost all that it has computed.
inline bool may_leave(const RotationRequest& request, const RotationConfig& config) {
  return !request.stays && (config.paper || (request.made_token && !request.prefilling));
}

/// The DRAM gates that every preempting policy shares: above 90 % no new request is admitted, from
/// 95 % on none is preempted. Computed in integers, so that exactly 90 % and 95 % fall on the
/// documented side.
/// Source: SuperInfer's published code; `paper` leaves them out.
inline const DramUse* dram_gates(const RotationSnapshot& snapshot, const RotationConfig& config) {
  return snapshot.dram && !config.paper ? &*snapshot.dram : nullptr;
}

/// The 90 % gate is for requests that hold nothing in DRAM yet. A rotary request, with a token or
/// without, gives back what it holds there by coming in.
inline bool may_enter(const RotationRequest& request, const DramUse* dram) {
  return request.state == RequestState::kRotary || !dram ||
         (dram->total - dram->free) * 10 <= dram->total * 9;
}

inline bool may_preempt(const DramUse* dram) {
  return !dram || (dram->total - dram->free) * 20 < dram->total * 19;
}

}  // namespace kvd::planner
