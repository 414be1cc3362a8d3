#include "planner/policy/catalogue.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "planner/policy/fcfs.hpp"
#include "planner/policy/guarded.hpp"
#include "planner/policy/length_policy.hpp"
#include "planner/policy/load.hpp"
#include "planner/policy/lvf.hpp"
#include "planner/policy/queue_policy.hpp"
#include "planner/policy/unified.hpp"

namespace kvd::planner {
namespace {

using RotationFactory = std::unique_ptr<RotationPolicy> (*)();

template <class Policy>
std::unique_ptr<RotationPolicy> make() {
  return std::make_unique<Policy>();
}

std::unique_ptr<RotationPolicy> queue_policy(std::string_view policy, QueueRule rule) {
  return std::make_unique<QueuePolicy>(policy, rule);
}

std::unique_ptr<RotationPolicy> by_length(std::string_view policy, LengthRule rule) {
  return std::make_unique<LengthPolicy>(policy, rule);
}

std::unique_ptr<RotationPolicy> guarded(std::unique_ptr<RotationPolicy> bare) {
  return std::make_unique<GuardedPolicy>(std::move(bare));
}

struct RotationEntry {
  std::string_view name;
  RotationFactory factory;
};

constexpr std::array<RotationEntry, 9> kRotationEntries = {{
    {"unified", make<UnifiedPolicy>},
    {"lvf", make<LvfPolicy>},
    {"fcfs", make<FcfsPolicy>},
    {"si_code", [] { return queue_policy("si_code", QueueRule::kSiCode); }},
    {"waiting_first", [] { return queue_policy("waiting_first", QueueRule::kWaitingFirst); }},
    {"swapped_first", [] { return queue_policy("swapped_first", QueueRule::kSwappedFirst); }},
    {"srtf", [] { return by_length("srtf", LengthRule::kSrtf); }},
    {"ltr", [] { return by_length("ltr", LengthRule::kLtr); }},
    {"sjf_oracle", [] { return by_length("sjf_oracle", LengthRule::kSjfOracle); }},
}};
// A daemon has no oracle, so it cannot run the last policy.
constexpr std::size_t kInDaemon = kRotationEntries.size() - 1;

constexpr auto kRotation = [] {
  std::array<std::string_view, kRotationEntries.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kRotationEntries[i].name;
  return names;
}();

constexpr std::array<std::string_view, 8> kPlacement = {
    "none",         "orbitflow",         "deepspeed", "flexgen",
    "flexgen_plus", "dynamic_heuristic", "slo_aware", "batch_uniform"};
constexpr std::array<std::string_view, 5> kAdmission = {"none", "layerkv", "layerkv_literal",
                                                        "whole_request", "past_future"};

constexpr std::string_view kGuards = "+guards";

Error unknown(Decision decision, std::string_view policy,
              std::span<const std::string_view> available) {
  std::string message =
      "no " + std::string(name(decision)) + " policy \"" + std::string(policy) + "\"; available:";
  for (const auto known : available) message += " " + std::string(known);
  return make_error(ErrorCode::kInvalidArgument, std::move(message));
}

}  // namespace

std::string with_guards(std::string_view policy) {
  return std::string(without_guards(policy)) + std::string(kGuards);
}

std::string_view without_guards(std::string_view policy) {
  if (policy.ends_with(kGuards)) policy.remove_suffix(kGuards.size());
  return policy;
}

std::string_view name(Decision decision) {
  constexpr std::string_view kNames[] = {"rotation", "placement", "admission", "load"};
  return kNames[static_cast<std::size_t>(decision)];
}

std::span<const std::string_view> policy_names(Decision decision) {
  switch (decision) {
    case Decision::kRotation:
      return std::span(kRotation).first(kInDaemon);
    case Decision::kPlacement:
      return kPlacement;
    case Decision::kAdmission:
      return kAdmission;
    case Decision::kLoad:
      return load_policy_names();
  }
  return {};
}

std::span<const std::string_view> rotation_policy_names() { return kRotation; }

Status check_policy_name(Decision decision, std::string_view policy) {
  const auto names = policy_names(decision);
  const bool guards = decision == Decision::kRotation || decision == Decision::kAdmission;
  if (guards) policy = without_guards(policy);
  if (std::find(names.begin(), names.end(), policy) != names.end()) return {};
  return unknown(decision, policy, names);
}

Result<std::unique_ptr<RotationPolicy>> make_rotation_policy(std::string_view policy) {
  for (const auto& entry : kRotationEntries) {
    if (entry.name == policy) return entry.factory();
    if (with_guards(entry.name) == policy) return guarded(entry.factory());
  }
  return unknown(Decision::kRotation, policy, kRotation);
}

}  // namespace kvd::planner
