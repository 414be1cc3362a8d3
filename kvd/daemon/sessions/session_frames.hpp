#pragma once

#include "ipc/wire/attach_codec.hpp"
#include "kvd/daemon/sessions/groups.hpp"
#include "kvd/daemon/sessions/session_ends.hpp"
#include "kvd/daemon/sessions/session_table.hpp"

namespace kvd::daemon {

/// What sessions say on their attach sockets once they are in: that a slab is mapped or unmapped,
/// and goodbye. One that says anything else, or closes its socket without goodbye, is dropped.
/// Source: ipc/PROTOCOL.md section 2.
/// Owner:  control thread. What it is given must outlive it.
class SessionFrames {
 public:
  SessionFrames(SessionTable& sessions, Groups& groups, SessionEnds& ends)
      : sessions_(sessions), groups_(groups), ends_(ends) {}

  /// The session's socket is readable.
  void on_socket(EngineId engine);

 private:
  /// Whether more of its frames may be looked at.
  [[nodiscard]] bool hear(Peer& peer);
  [[nodiscard]] bool obey(Peer& peer, const wire::AttachMessage& message);
  /// A rank whose group has ended is expected to say goodbye and nothing else.
  void hear_goodbye(Peer& peer);

  SessionTable& sessions_;
  Groups& groups_;
  SessionEnds& ends_;
};

}  // namespace kvd::daemon
