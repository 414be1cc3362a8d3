#pragma once

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/workload/arrival_times.hpp"
#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {

/// Conversations. Each turn's prompt is the system prompt, all turns before it and what the user
/// says now, so that its leading blocks are those of the turn before (Arrival::prefix). The lengths
/// of a turn are ShareGPT's. A conversation has four turns on average, and its user thinks for a
/// minute and a half on average. There are twelve system prompts of 512 to 4,096 tokens, asked for
/// in proportion to 1, 1/2, 1/3, … Of these figures only the lengths are published; the others are
/// ours.
///
/// `pattern.rate` counts requests; conversations begin at a quarter of it. Errors: as
/// arrival_times().
[[nodiscard]] Result<Workload> chat(const ArrivalPattern& pattern, Random& times, Random& lengths);

}  // namespace kvd::sim
