#pragma once

namespace kvd::sim {

/// Exit statuses of every command of kvd-sim and kvd-lab.
enum ExitStatus : int { kDone = 0, kFailed = 1, kUsage = 2 };

}  // namespace kvd::sim
