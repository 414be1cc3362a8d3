#pragma once

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/workload/arrival_times.hpp"
#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {

/// Sessions of agents. Each turn's prompt is all turns before it and a tool's answer. A session has
/// 10 to 60 turns. It begins with the instructions and tools of its program, one of six, each
/// replaced by a new release every half hour. Between turns a tool runs, for 2 to 300 s with a
/// heavy tail. One turn in twenty starts up to four sub-agents, which begin with all that the main
/// agent has read and go on for a few turns each; the main agent waits for them. At 64 K tokens the
/// session goes on from a summary.
///
/// The shape is that of published traces of coding agents: 33 turns in the median, a hundred tokens
/// read for each token written, nine tenths of what is read known from before. The other figures
/// are ours.
///
/// `pattern.rate` counts requests. Errors: as arrival_times().
[[nodiscard]] Result<Workload> agents(const ArrivalPattern& pattern, Random& times,
                                      Random& lengths);

}  // namespace kvd::sim
