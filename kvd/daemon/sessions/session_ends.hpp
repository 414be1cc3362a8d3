#pragma once

#include <set>
#include <string>

#include "kvd/daemon/base/event_log.hpp"
#include "kvd/daemon/base/poller.hpp"
#include "kvd/daemon/sessions/event_feed.hpp"
#include "kvd/daemon/sessions/groups.hpp"
#include "kvd/daemon/sessions/liveness.hpp"
#include "kvd/daemon/sessions/replies.hpp"
#include "kvd/daemon/sessions/session_table.hpp"

namespace kvd::daemon {

/// How sessions end: by goodbye, by misbehaviour (drop), or with their process. The poison comes
/// first, so that whoever is released finds it before a token leaves; what the session may still
/// have mapped is the Controller's to quarantine until the process is gone. A group ends with the
/// first of its ranks: the others hold what it held a share of.
/// Source: kvd/DESIGN.md "A death", "Safety rules" 2 and 8.
/// Owner:  control thread. What it is given must outlive it.
/// Errors: none; what cannot be done is told to the log.
class SessionEnds {
 public:
  struct Uses {
    SessionTable& sessions;
    Groups& groups;
    Replies& replies;
    Poller& poller;
    EventFeed& events;
    EventLog& log;
    Liveness& liveness;
  };

  explicit SessionEnds(const Uses& uses) : uses_(uses) {}

  /// The session misbehaved, or its keeper died. Nothing happens to one that has ended.
  void drop(EngineId engine, const std::string& why);
  /// The session says goodbye: it maps nothing of ours any more and writes nothing, as with a
  /// region it freed.
  void leave(Peer& peer);
  /// Its pidfd is readable: nothing can write any more.
  void on_process_end(EngineId engine);
  /// A rank whose group has ended says goodbye, too.
  void leave_silenced(Peer& peer);
  /// The same rank closes its socket instead.
  void end_silenced(Peer& peer);
  /// The daemon ends, or its device is lost.
  void end_all();

  /// Looks whether the session's heartbeat moved; the first beat has its keeper word watched.
  void beat(Peer& peer);
  /// Kills every rank of the engine, those whose session has ended, too.
  void kill_ranks(EngineId engine);

 private:
  void end_session(Peer& peer);
  /// The same, but the socket stays open, so that a goodbye can still be heard.
  void silence(Peer& peer);
  void end_group(Peer& first, bool died);
  void remove(Peer& peer);
  void remove_rank(Peer& rank);
  void watch_keeper(Peer& peer);
  /// Kills by the pidfd, so that no other process can be hit.
  void kill(const Peer& peer);

  const Uses uses_;
  std::set<EngineId> unkillable_;  ///< as was told
};

}  // namespace kvd::daemon
