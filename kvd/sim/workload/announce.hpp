#pragma once

#include <cstdint>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {

/// Sets the longest answer that each request announces, as clients set `max_tokens`:
/// - "exact": what it will really make. No client knows that.
/// - a number, such as "8192": so many tokens, or its answer where that is longer.
/// - "mix", by `seed`: a third of each kind of client: exact, the next power of two, 8192.
/// Source: kvd design.
/// Errors: InvalidArgument for other words, and a number that is not from 1 to 10^9.
[[nodiscard]] Status announce_lengths(Workload& workload, std::string_view how, std::uint64_t seed);

}  // namespace kvd::sim
