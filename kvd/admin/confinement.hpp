#pragma once

#include <string>

#include "ipc/vocabulary/result.hpp"
#include "kvd/admin/link/messages.hpp"

namespace kvd::admin {

/// Gives up what this process could do beyond its task, for good: another user, no capability, no
/// new privileges, no files, no connection but those it accepts, no signal to others, bounds on
/// memory and descriptors; it dies with the process that started it. Before the first thread, and
/// before the first byte of a stranger is read. What this kernel cannot forbid stands in the text;
/// "" : it can forbid all.
/// Source: landlock(7), seccomp(2). Errors: PermissionDenied for a user it cannot become.
[[nodiscard]] Result<std::string> confine(const link::Begin& begin);

/// No further thread, process or listener either. After all threads have been started.
void seal();

}  // namespace kvd::admin
