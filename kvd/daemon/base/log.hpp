#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/vocabulary/units.hpp"

/// The daemon's log: one line an event on standard error, never a token, key or KV byte. To log
/// never waits: lines are written by a thread of the log's own (LogWriter), those that repeat too
/// often are left out (LineLimit).
/// Owner: thread-safe. The first line starts the log's thread.
namespace kvd::daemon {

/// Lines that nobody can read, since the start.
struct LogLosses {
  std::uint64_t overrun = 0;   ///< 1 MiB waited to be read already
  std::uint64_t repeated = 0;  ///< said often enough
};

/// Levels: trace, debug, info, warning, error, off. Unknown ones mean info.
void set_log_level(std::string_view level);
void log_info(const std::string& text);
void log_warning(const std::string& text);
void log_error(const std::string& text);
/// Before the process ends: waits until all lines are written. False: not within `timeout`.
bool flush_log(Nanoseconds timeout);
[[nodiscard]] LogLosses log_losses();

}  // namespace kvd::daemon
