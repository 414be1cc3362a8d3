#pragma once

#include <map>
#include <optional>

#include "ipc/transport/command_server.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/daemon/sessions/session_table.hpp"
#include "kvd/daemon/sessions/translate.hpp"

namespace kvd::daemon {

/// Commands that have no reply yet, and the way of replies to their peers: back over ZeroMQ, or
/// into the session's ring.
/// Owner:  control thread. Server and table must outlive it.
/// Errors: of answer() and send those of CommandServer::send and RingPort::send; the caller drops
///         the session.
class Replies {
 public:
  struct Waiting {
    EngineId engine;
    transport::PeerId peer;
    ReplyHead head;
  };

  Replies(transport::CommandServer& server, SessionTable& sessions)
      : server_(server), sessions_(sessions) {}

  /// A command goes to the Controller; its reply carries the number.
  [[nodiscard]] core::ReplyTo expect(const Waiting& command);
  /// The command that a reply belongs to; none: its session has ended meanwhile.
  [[nodiscard]] std::optional<Waiting> take(core::ReplyTo reply_to);
  [[nodiscard]] Status answer(transport::PeerId peer, const ReplyHead& head,
                              const decltype(core::Reply::body)& body);
  /// The session ends: its open commands are answered with StaleSession, and its connection belongs
  /// to no session any more.
  void end(const Peer& peer);

 private:
  [[nodiscard]] Status send(transport::PeerId to);

  transport::CommandServer& server_;
  SessionTable& sessions_;
  std::map<core::ReplyTo, Waiting> waiting_;
  std::uint64_t last_ = 0;
  wire::FrameBuffer frame_;
};

}  // namespace kvd::daemon
