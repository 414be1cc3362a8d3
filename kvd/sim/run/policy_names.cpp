#include "kvd/sim/run/policy_names.hpp"

#include <algorithm>
#include <array>

#include "planner/baselines/all_policies.hpp"
#include "planner/baselines/guarded.hpp"

namespace kvd::sim {
namespace {

constexpr std::array<std::string_view, 3> kAblations = {"request_wise", "pause_resume", "deposit"};

constexpr std::string_view kStock = "stock";

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The three other policies that stand beside a policy of one decision.
struct Rest {
  const char *rotation, *placement, *admission, *load;
};
/// A rotation policy itself decides which requests come in: a prompt that waits for free blocks
/// before the scheduler sees it is never rotated in.
constexpr Rest kBesideRotation = {"fcfs", "none", "none", "never"};
/// What vLLM does beside a policy of another decision: a prompt enters when all its blocks are
/// free.
constexpr Rest kBesideOthers = {"fcfs", "none", "whole_request", "never"};

NamedPolicy with(const Rest& rest, std::string_view name) {
  NamedPolicy policy;
  policy.name = name;
  policy.tuning.rotation.policy = rest.rotation;
  policy.tuning.placement.policy = rest.placement;
  policy.tuning.admission.policy = rest.admission;
  policy.tuning.load.policy = rest.load;
  return policy;
}

NamedPolicy unified() {
  NamedPolicy policy = with(kBesideRotation, "unified");
  policy.tuning.rotation.policy = "unified";
  policy.tuning.placement.policy = "orbitflow";
  policy.tuning.admission.policy = "layerkv";
  policy.tuning.load.policy = "measured_crossover";
  return policy;
}

NamedPolicy ablation(std::string_view name) {
  NamedPolicy policy = with(kBesideOthers, name);
  policy.tuning.placement.policy = "orbitflow";
  policy.tuning.placement.pause = name != "request_wise";
  policy.tuning.placement.deposit = name == "deposit";
  return policy;
}

Error unknown(std::string_view name) {
  std::string message = "no policy \"" + std::string(name) + "\"; available:";
  for (const auto known : policy_names()) message += " " + std::string(known);
  return make_error(ErrorCode::kInvalidArgument, std::move(message));
}

Result<NamedPolicy> policy_without_guards(std::string_view name) {
  if (name == "unified") return unified();
  if (name == kStock) {
    NamedPolicy policy = with(kBesideRotation, name);
    policy.stock = true;
    return policy;
  }
  if (contains(kAblations, name)) return ablation(name);
  const bool rotates = contains(planner::all_policies().names(planner::Decision::kRotation), name);
  NamedPolicy policy = with(rotates ? kBesideRotation : kBesideOthers, name);
  const std::string own(name);
  // `none` is both a placement policy and an admission policy; only as the latter does it differ
  // from the rest.
  if (rotates) {
    policy.tuning.rotation.policy = own;
    policy.oracle = name == planner::kOraclePolicy;
  } else if (contains(planner::all_policies().names(planner::Decision::kAdmission), name)) {
    policy.tuning.admission.policy = own;
  } else if (contains(planner::all_policies().names(planner::Decision::kPlacement), name)) {
    policy.tuning.placement.policy = own;
  } else if (contains(planner::all_policies().names(planner::Decision::kLoad), name)) {
    policy.tuning.load.policy = own;
  } else {
    return unknown(name);
  }
  return policy;
}

}  // namespace

Result<NamedPolicy> policy_named(std::string_view name) {
  const std::string_view bare = planner::without_guards(name);
  KVD_ASSIGN_OR_RETURN(NamedPolicy policy, policy_without_guards(bare));
  if (bare == name) return policy;
  policy.name = name;
  policy.tuning.rotation.policy = planner::with_guards(policy.tuning.rotation.policy);
  policy.tuning.admission.policy = planner::with_guards(policy.tuning.admission.policy);
  return policy;
}

std::vector<std::string_view> policy_names() {
  std::vector<std::string_view> names;
  const auto add = [&](std::span<const std::string_view> table) {
    for (const auto name : table) {
      if (!contains(names, name)) names.push_back(name);
    }
  };
  add(planner::all_policies().names(planner::Decision::kRotation));
  add(planner::all_policies().names(planner::Decision::kPlacement));
  add(planner::all_policies().names(planner::Decision::kAdmission));
  add(planner::all_policies().names(planner::Decision::kLoad));
  add(kAblations);
  names.push_back(kStock);
  return names;
}

}  // namespace kvd::sim
