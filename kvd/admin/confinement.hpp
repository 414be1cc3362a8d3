#pragma once

#include <string>

#include "ipc/vocabulary/result.hpp"
#include "kvd/admin/link/messages.hpp"

namespace kvd::admin {

/// Gives up what this process could do beyond its task, for good: another user, no capability, no
/// new privileges, no files, no connection but those it accepts, no signal to others, bounds on
/// memory and descriptors; it dies with the process that started it. Call it before the first
/// thread, and before the first byte of a stranger is read. The text says what this kernel cannot
/// forbid; "": nothing.
/// Source: landlock(7), seccomp(2). Errors: PermissionDenied for a user it cannot become.
[[nodiscard]] Result<std::string> confine(const link::Begin& begin);

/// Forbids further threads, processes and listeners, too. Call it after all threads have started.
void seal();

}  // namespace kvd::admin
