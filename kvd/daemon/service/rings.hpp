#pragma once

#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/daemon/service/commands.hpp"
#include "kvd/daemon/sessions/session_ends.hpp"
#include "kvd/daemon/sessions/session_table.hpp"
#include "kvd/daemon/workers/copies.hpp"
#include "kvd/daemon/workers/turns.hpp"

namespace kvd::daemon {

/// Commands that come by rings. The control thread looks by itself at the rings of engines that are
/// awake; such an engine does not ring its bell, since its ring is not marked as asleep. The silent
/// ones are left asleep, to be woken by their bells. One command of each domain is taken at a time,
/// beginning with the domain whose commands have used the least time.
/// Source: ipc/PROTOCOL.md (the ring); kvd/DESIGN.md "Turns, lines and claims".
/// Owner:  control thread. What it is given must outlive it. Errors: none; a ring in a state that
///         no honest engine leaves ends its session.
class Rings {
 public:
  struct Uses {
    SessionTable& sessions;
    Commands& commands;
    Copies& copies;
    SessionEnds& ends;
    Turns& turns;
    const Clock& clock;
    Nanoseconds spin;  ///< looking at rings before a sleep; 0: none
  };

  explicit Rings(const Uses& uses) : uses_(uses) {}

  /// The session's ring is looked at; one without a ring does nothing.
  void wake(EngineId engine);
  /// Whether more may wait.
  bool take_turn();

 private:
  [[nodiscard]] bool serve_all(TimePoint until);
  void sort_awake();
  [[nodiscard]] bool serve(EngineId engine);
  [[nodiscard]] bool filled_while_looking();

  const Uses uses_;
  std::vector<EngineId> awake_;
};

}  // namespace kvd::daemon
