#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kvd/admin/link/snapshot.hpp"
#include "kvd/admin/link/tuning_change.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/core/door/tuning.hpp"

namespace kvd::admin {

/// The JSON documents of the admin interface, as text. Pure functions.
/// Units: byte counts end in `_bytes`, times in `_s`.
/// Source: kvd/DESIGN.md "What operators see and change".
[[nodiscard]] std::string status_document(const core::ControllerStatus& status,
                                          const DaemonInfo& info);
[[nodiscard]] std::string pools_document(const core::ControllerStatus& status,
                                         const DaemonInfo& info);
[[nodiscard]] std::string engines_document(const core::ControllerStatus& status);
[[nodiscard]] std::string requests_document(const core::ControllerStatus& status);
/// What the prefix cache holds, and what was found in it since kvd started; byte counts, tokens.
[[nodiscard]] std::string cache_document(const core::ControllerStatus& status);
[[nodiscard]] std::string remote_document(const core::ControllerStatus& status);
/// The placement plan in force for each engine whose layers may stream.
[[nodiscard]] std::string plan_document(const core::ControllerStatus& status);
[[nodiscard]] std::string origins_document(const std::vector<ConfigOrigin>& origins);
[[nodiscard]] std::string config_document(
    const std::vector<std::pair<std::string, std::string>>& values);
[[nodiscard]] std::string events_document(const std::vector<Happening>& happenings, TimePoint now);
/// The counters of the last minutes, with the boot that they are of.
[[nodiscard]] std::string history_document(const Snapshot& snapshot);
/// Joins the documents of status, pools, engines, requests, plan, cache and the last events on one
/// line, which is what the console shows.
[[nodiscard]] std::string overview_document(const Snapshot& snapshot);
[[nodiscard]] std::string policy_document(const core::Tuning& tuning);
[[nodiscard]] std::string slo_document(const core::Tuning& tuning);

/// Lists what is out of service, and what it has left.
[[nodiscard]] std::string drain_document(const core::ControllerStatus& status, TimePoint now);
[[nodiscard]] std::string quotas_document(const std::vector<DomainQuota>& quotas);

/// Why a change was refused, as the answer's body says it.
struct Refusal {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string path;  ///< JSON pointer to the key in question; "" for the whole document
  std::string message;
};
/// {"error":"InvalidArgument","path":"/rotation/alpha","message":"…"}
[[nodiscard]] std::string refusal_document(const Refusal& refusal);

/// Reads a JSON merge-patch (RFC 7396) to the document of policy_document, slo_document,
/// quotas_document or drain_document as the values it sets. Unknown keys and wrong types are
/// refused; link::changed() says which values are allowed. Null removes a class of the SLO document
/// or the maximum of a quota, and nothing else; a new class starts with the goals of "default".
[[nodiscard]] std::variant<std::vector<link::Assignment>, Refusal> read_patch(
    link::Part part, std::string_view text);

/// Whether each value of a refused change is allowed by itself, and only present values are in its
/// way: a window would end before it begins, or there would be one class too many.
[[nodiscard]] bool contradicts(const Refusal& refusal);

/// An error of link::changed(), whose message begins with the key's path, as a refusal.
[[nodiscard]] Refusal refusal_of(const Error& fault);

}  // namespace kvd::admin
