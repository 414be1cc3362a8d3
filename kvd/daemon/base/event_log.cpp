#include "kvd/daemon/base/event_log.hpp"

#include "kvd/daemon/base/log.hpp"

namespace kvd::daemon {

void EventLog::tell(core::Note::Level level, EngineId engine, const std::string& text) {
  switch (level) {
    case core::Note::Level::kInfo:
      log_info(text);
      return journal_.add(clock_.now(), "info", engine, text);
    case core::Note::Level::kWarning:
      log_warning(text);
      return journal_.add(clock_.now(), "warning", engine, text);
    case core::Note::Level::kError:
      log_error(text);
      return journal_.add(clock_.now(), "error", engine, text);
  }
}

}  // namespace kvd::daemon
