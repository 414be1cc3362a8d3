#pragma once

#include <limits>

#include "planner/policy/rotation.hpp"

namespace kvd::planner {

inline constexpr Bytes kUnlimited{std::numeric_limits<std::int64_t>::max()};

/// The share of the tokens that engines make which those who have started may need. What is left is
/// saved up: without it turns get ever shorter, and moving takes what there was to save.
inline constexpr double kPromised = 0.85;

/// Nobody leaves in the midst of prefill, and nobody before a token since coming in: what is moved
/// in and out without one is moved for nothing, again and again. Nobody at all whose return would
/// cost all that it has computed.
inline bool may_leave(const RotationRequest& request, const RotationConfig& config) {
  return !request.stays && (config.paper || (request.made_token && !request.prefilling));
}

/// The DRAM gates every preempting policy shares: above 90 % nobody new is admitted, from 95 % on
/// nobody is preempted. In integers, so that exactly 90 % and 95 % fall on the documented side.
/// Source: SuperInfer's published code; `paper` leaves them out.
inline const DramUse* dram_gates(const RotationSnapshot& snapshot, const RotationConfig& config) {
  return snapshot.dram && !config.paper ? &*snapshot.dram : nullptr;
}

/// The 90 % gate is for requests that hold nothing in DRAM yet: a rotary one, with a token or
/// without, gives back what it holds there by coming in.
inline bool may_enter(const RotationRequest& request, const DramUse* dram) {
  return request.state == RequestState::kRotary || !dram ||
         (dram->total - dram->free) * 10 <= dram->total * 9;
}

inline bool may_preempt(const DramUse* dram) {
  return !dram || (dram->total - dram->free) * 20 < dram->total * 19;
}

}  // namespace kvd::planner
