#pragma once

#include "ipc/transport/command_server.hpp"
#include "ipc/wire/codec.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/daemon/sessions/event_feed.hpp"
#include "kvd/daemon/sessions/groups.hpp"
#include "kvd/daemon/sessions/replies.hpp"
#include "kvd/daemon/sessions/session_ends.hpp"
#include "kvd/daemon/sessions/session_table.hpp"
#include "kvd/daemon/workers/turns.hpp"

namespace kvd::daemon {

/// Commands on their way to the Controller: who may give them, and in which order. A command that
/// came over ZeroMQ waits for its domain's turn; one that came by a ring is taken by Rings and
/// handed in here.
/// Source: ipc/PROTOCOL.md section 4 (order of checks); kvd/DESIGN.md "Turns, lines and claims".
/// Owner:  control thread. What it is given must outlive it.
/// Errors: none; every command that has a header is answered, and whoever floods is dropped.
class Commands {
 public:
  struct Uses {
    transport::CommandServer& server;
    BootId boot;
    SessionTable& sessions;
    Groups& groups;
    Replies& replies;
    SessionEnds& ends;
    EventFeed& events;
    Turns& turns;
  };

  explicit Commands(const Uses& uses) : uses_(uses) {}

  /// The server's descriptor was readable.
  void on_readable() { due_ = true; }
  /// Whether some wait that came over ZeroMQ.
  [[nodiscard]] bool waiting() const { return due_ || !uses_.turns.empty(); }
  /// Whether some wait that were taken from ZeroMQ already.
  [[nodiscard]] bool held() const { return !uses_.turns.empty(); }
  /// Commands for about a millisecond, one at least. Whether more wait.
  bool take_turn();
  void on_command(const transport::Incoming& incoming);

  /// Counts commands that no living session proved to be its own.
  [[nodiscard]] std::uint64_t stale() const { return stale_; }
  /// How long those of engines that place their blocks took, from the frame to the reply.
  [[nodiscard]] const core::Distribution& schedule_seconds() const { return schedule_seconds_; }

 private:
  void hold();
  /// The session that a command comes from, proved by its key.
  [[nodiscard]] Result<Peer*> identify(const wire::CommandHeader& header,
                                       const transport::Incoming& incoming);
  [[nodiscard]] Result<Peer*> authenticate(const wire::CommandHeader& header,
                                           const transport::Incoming& incoming);
  void trust(Peer& peer, transport::PeerId connection);
  /// Checks what the session asks for and hands it on. Errors: those to answer with.
  [[nodiscard]] Status submit(const Peer& peer, const ReplyHead& head,
                              const transport::Incoming& incoming);
  void answer(transport::PeerId peer, const ReplyHead& head, const Error& error, EngineId engine);

  const Uses uses_;
  /// The server has to be read: its descriptor was readable, or some commands have not had their
  /// turn.
  bool due_ = true;
  std::uint64_t stale_ = 0;
  core::Distribution schedule_seconds_{core::kScheduleBounds};
};

}  // namespace kvd::daemon
