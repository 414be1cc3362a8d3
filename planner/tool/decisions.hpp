#pragma once

#include <string_view>

#include "planner/tool/fields.hpp"

namespace kvd::planner {

/// The decisions of kvd-plan: each takes a snapshot and returns a result. Errors: InvalidArgument
/// naming the key.
[[nodiscard]] Result<OrderedJson> plan_latency(const Json& snapshot);
[[nodiscard]] Result<OrderedJson> plan_place(const Json& snapshot);
[[nodiscard]] Result<OrderedJson> plan_rotate(const Json& snapshot);
[[nodiscard]] Result<OrderedJson> plan_admit(const Json& snapshot);
[[nodiscard]] Result<OrderedJson> plan_deposit(const Json& snapshot);
[[nodiscard]] Result<OrderedJson> plan_load(const Json& snapshot);

using Decide = Result<OrderedJson> (*)(const Json&);
/// Null for a name that is no decision.
[[nodiscard]] Decide decision_named(std::string_view name);
[[nodiscard]] std::vector<std::string> decision_names();

/// Parses and decides.
[[nodiscard]] Result<OrderedJson> decide_text(Decide decide, std::string_view text);
[[nodiscard]] OrderedJson error_json(const Error& error);

}  // namespace kvd::planner
