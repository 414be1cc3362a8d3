#pragma once

#include <optional>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/workload/random.hpp"
#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {

/// When requests come: gaps are gamma distributed with mean 1 / rate and coefficient of variation
/// `cv`; 1 is Poisson, 0 a steady beat. Arrivals end with the first of `duration` and `requests`.
struct ArrivalPattern {
  double rate = 1;  ///< requests a second
  double cv = 1;
  std::optional<Seconds> duration;
  std::optional<std::size_t> requests;
};

/// The most arrivals that are made at once.
inline constexpr std::size_t kMaxArrivals = 10'000'000;

/// Errors: InvalidArgument for a rate, CV, duration or count out of range, or where nothing ends
/// the arrivals.
[[nodiscard]] Result<std::vector<Seconds>> arrival_times(const ArrivalPattern& pattern,
                                                         Random& random);

/// The requests of all sessions in order of time, up to the pattern's end.
[[nodiscard]] Workload in_order(Workload requests, const ArrivalPattern& pattern);

}  // namespace kvd::sim
