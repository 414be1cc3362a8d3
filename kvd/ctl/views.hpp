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
  kRemote,
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

/// A text in the status document, as "version" or "endpoints/attach"; "" when it is not there.
[[nodiscard]] std::string text_in(std::string_view status_document, const std::string& path);
/// How many engines of the document have a process that kvd does not see.
[[nodiscard]] int unseen_in(std::string_view engines_document);

/// The message of an answer that refuses, "path: message"; another server's text as it is.
[[nodiscard]] std::string refusal_text(std::string_view document);

}  // namespace kvd::ctl
