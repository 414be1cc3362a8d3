#pragma once

#include <cstdint>

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {

/// Predicts every answer, wrong by a factor of exp(error * z) with z normal. 0 is an oracle; with
/// 0.7 one standard deviation is a factor of two. The same seed errs in the same way. Errors:
/// InvalidArgument for an error that is not from 0 to 10.
[[nodiscard]] Status predict_lengths(Workload& workload, double error, std::uint64_t seed);

}  // namespace kvd::sim
