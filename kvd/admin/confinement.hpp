#pragma once

#include "ipc/vocabulary/result.hpp"
#include "kvd/admin/link/messages.hpp"

namespace kvd::admin {

/// Gives up what this process could do beyond its task, for good: another user, no capability, no
/// new privileges, bounds on memory and descriptors; it dies with the process that started it.
/// Before the first byte of a stranger is read. Errors: PermissionDenied for a user it cannot
/// become.
[[nodiscard]] Status confine(const link::Begin& begin);

/// No further thread or process. After all threads have been started.
void forbid_threads();

}  // namespace kvd::admin
