#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/core/door/tuning.hpp"
#include "planner/policy/placement/placement.hpp"

namespace kvd::sim {

/// What a policy's name stands for in `kvd-sim` and `kvd-bench serve`.
struct NamedPolicy {
  std::string name;
  core::Tuning tuning;
  /// The policy is told how long each answer will be.
  bool oracle = false;
  /// The own rule of engines that place their blocks: they do not ask kvd.
  bool stock = false;
};

/// One setting for each name, the same for every command and figure. A policy sets the one of
/// planner/MODEL.md "The four decisions" that it is for. Beside a rotation policy stand placement
/// none, admission none and load never, because it decides itself which requests come in. Beside
/// all others stand rotation fcfs, placement none, admission whole_request and load never.
/// `unified` sets all four defaults. `request_wise`, `pause_resume` and `deposit` are orbitflow
/// without pause and deposit, with pause, and with both. A name that stands in several tables
/// (`none`) means the admission policy. `stock` is what engines that place their blocks do without
/// kvd: vLLM's first come, first served. `sjf_oracle` knows the lengths; no daemon runs it.
/// NAME+guards is the policy with the guard of steps that `unified` has
/// (planner/baselines/guarded.hpp). Errors: InvalidArgument naming every name there is.
[[nodiscard]] Result<NamedPolicy> policy_named(std::string_view name);

/// Every name, in the order of the tables.
[[nodiscard]] std::vector<std::string_view> policy_names();

}  // namespace kvd::sim
