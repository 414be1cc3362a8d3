#pragma once

#include <string>
#include <string_view>

/// The daemon's log: one line an event on standard error, never a token, key or KV byte.
/// Owner: thread-safe.
namespace kvd::daemon {

/// Levels: trace, debug, info, warning, error, off. Unknown ones mean info.
void set_log_level(std::string_view level);
void log_info(const std::string& text);
void log_warning(const std::string& text);
void log_error(const std::string& text);

}  // namespace kvd::daemon
