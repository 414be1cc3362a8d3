#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/run/inputs.hpp"
#include "kvd/sim/workload/arrival_times.hpp"

namespace kvd::sim {

/// A named source of requests: how long they are, and how they arrive unless told otherwise.
struct Generator {
  std::string name;
  std::string description;
  ArrivalPattern arrivals;
  /// Sets prompt and output; none: its sessions set them.
  std::function<void(Random&, Arrival&)> lengths;
  /// Requests that follow from each other: gives the times and lengths of all. None: each request
  /// is drawn alone.
  std::function<Result<Workload>(const ArrivalPattern&, Random& times, Random& lengths)> sessions{};
};

/// Every generator by name, except "fixed-PROMPT-OUTPUT", which stands for a family.
[[nodiscard]] const std::vector<Generator>& generators();
/// `name` comes without "gen:". Errors: NotFound naming the generators, InvalidArgument for lengths
/// of 0.
[[nodiscard]] Result<Generator> generator_named(std::string_view name);

/// Errors: as arrival_times().
[[nodiscard]] Result<Workload> generate(const Generator& generator, const WorkloadOptions& options);

}  // namespace kvd::sim
