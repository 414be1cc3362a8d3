#pragma once

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/workload/arrival_times.hpp"
#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {

/// Conversations: each turn's prompt is the system prompt, all turns before it and what the user
/// says now, so that its leading blocks are those of the turn before (Arrival::prefix). Lengths of
/// a turn are ShareGPT's; a conversation has four turns in the mean, and its user thinks for a
/// minute and a half in the mean; system prompts are twelve of 512 to 4,096 tokens, asked for in
/// proportion to 1, 1/2, 1/3, … None of these figures but the lengths is published: they are ours.
///
/// `pattern.rate` is of requests; conversations begin at a quarter of it.
/// Errors: as arrival_times().
[[nodiscard]] Result<Workload> chat(const ArrivalPattern& pattern, Random& times, Random& lengths);

}  // namespace kvd::sim
