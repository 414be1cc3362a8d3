#pragma once

#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"

namespace kvd::ctl {

/// What kvdctl can show: the last part of /v1/…
enum class View {
  kStatus,
  kPools,
  kEngines,
  kRequests,
  kCache,
  kAdvice,
  kPlan,
  kEvents,
  kPolicy,
  kSlo,
  kQuota
};

/// A document of the admin interface as text for a person: aligned, with units.
/// Errors: Internal when it is not the JSON that this view knows (daemon of another version);
///         the message recommends --json.
[[nodiscard]] Result<std::string> render(View view, std::string_view document);

/// The daemon's version in the status document; "" when it is not there.
[[nodiscard]] std::string version_in(std::string_view status_document);

/// The message of an answer that refuses, "path: message"; the text itself when it is not ours.
[[nodiscard]] std::string refusal_text(std::string_view document);

}  // namespace kvd::ctl
