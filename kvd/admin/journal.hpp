#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::admin {

/// Something that happened, for a person. No token, prompt or KV byte.
struct Happening {
  std::uint64_t sequence = 0;  ///< counts from 1 without gaps, so a reader sees what it missed
  TimePoint at{0};
  std::string level;  ///< "info" | "warning" | "error"
  EngineId engine;    ///< none: of the daemon
  std::string text;
};

/// The last kKept happenings, for /v1/events.
/// Owner: thread-safe.
class Journal {
 public:
  static constexpr std::size_t kKept = 512;

  void add(TimePoint at, std::string level, EngineId engine, std::string text) {
    const std::lock_guard lock(mutex_);
    if (kept_.size() == kKept) kept_.pop_front();
    kept_.push_back({++last_, at, std::move(level), engine, std::move(text)});
  }
  /// Oldest first.
  [[nodiscard]] std::vector<Happening> all() const {
    const std::lock_guard lock(mutex_);
    return {kept_.begin(), kept_.end()};
  }

 private:
  mutable std::mutex mutex_;
  std::deque<Happening> kept_;  // guarded by mutex_
  std::uint64_t last_ = 0;      // guarded by mutex_
};

}  // namespace kvd::admin
