#pragma once

#include <string>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/admin/journal.hpp"
#include "kvd/core/door/effects.hpp"

namespace kvd::daemon {

/// What a person should know of: a line of the log, and an event that REST shows.
/// Owner: thread-safe. The clock must outlive it.
class EventLog {
 public:
  explicit EventLog(const Clock& clock) : clock_(clock) {}

  void tell(core::Note::Level level, EngineId engine, const std::string& text);
  void info(EngineId engine, const std::string& text) {
    tell(core::Note::Level::kInfo, engine, text);
  }
  void warn(EngineId engine, const std::string& text) {
    tell(core::Note::Level::kWarning, engine, text);
  }
  /// The latest, oldest first.
  [[nodiscard]] std::vector<admin::Happening> all() const { return journal_.all(); }

 private:
  const Clock& clock_;
  admin::Journal journal_;
};

}  // namespace kvd::daemon
