#pragma once

#include <cstdint>

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {

/// Predicts every answer, wrong by a factor of exp(error * z) with z normal: 0 is an oracle, 0.7
/// says twice or half as often as not. The same seed errs the same way.
/// Errors: InvalidArgument for an error that is not from 0 to 10.
[[nodiscard]] Status predict_lengths(Workload& workload, double error, std::uint64_t seed);

}  // namespace kvd::sim
