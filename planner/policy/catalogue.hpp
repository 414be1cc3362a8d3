#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "planner/policy/rotation.hpp"

namespace kvd::planner {

/// The decisions of MODEL.md "The four decisions".
enum class Decision : std::uint8_t { kRotation, kPlacement, kAdmission, kLoad };

[[nodiscard]] std::string_view name(Decision decision);

/// The policies that a daemon can run for a decision; the first is the default. kvd-plan knows
/// more: sjf_oracle, and load policies for which there is no prefix store yet.
[[nodiscard]] std::span<const std::string_view> policy_names(Decision decision);

/// "lvf+guards": the rotation policy asks for the guard of steps; "none+guards": the admission
/// policy keeps it (guarded.hpp). All policies of these two tables have such a second name, which
/// the lists do not repeat.
[[nodiscard]] std::string with_guards(std::string_view policy);
/// The name without "+guards", or unchanged where it has none.
[[nodiscard]] std::string_view without_guards(std::string_view policy);

/// Ok when a daemon can run the policy. Errors: InvalidArgument, naming those that it can run.
[[nodiscard]] Status check_policy_name(Decision decision, std::string_view policy);

/// All rotation policies that exist.
[[nodiscard]] std::span<const std::string_view> rotation_policy_names();
/// Errors: InvalidArgument naming them.
[[nodiscard]] Result<std::unique_ptr<RotationPolicy>> make_rotation_policy(std::string_view policy);

}  // namespace kvd::planner
