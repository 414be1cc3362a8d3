#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {

/// Sets the longest answer that each request announces, as clients set `max_tokens`:
/// - "exact": what it will really make. No client knows that.
/// - a number, such as "8192": so many tokens.
/// - "context": what its prompt leaves of the context, which servers take where a client says
///   nothing.
/// - "mix", by `seed`: a third of each kind of client: 8192, the context, and one that knows its
///   answers well enough to ask for the next power of two.
/// Never more than the context leaves, nor less than the answer.
/// `context`: by Arrival::engine, the longest prompt and answer together.
/// Source: kvd design.
/// Errors: InvalidArgument for other words, and a number that is not from 1 to 10^9.
[[nodiscard]] Status announce_lengths(Workload& workload, std::string_view how, std::uint64_t seed,
                                      std::span<const Tokens> context);

}  // namespace kvd::sim
