#include "kvd/daemon/sessions/replies.hpp"

#include "kvd/daemon/sessions/ring_peer.hpp"

namespace kvd::daemon {

core::ReplyTo Replies::expect(const Waiting& command) {
  const core::ReplyTo reply_to(++last_);
  waiting_.emplace(reply_to, command);
  return reply_to;
}

std::optional<Replies::Waiting> Replies::take(core::ReplyTo reply_to) {
  const auto node = waiting_.extract(reply_to);
  if (node.empty()) return std::nullopt;
  return node.mapped();
}

Status Replies::answer(transport::PeerId peer, const ReplyHead& head,
                       const decltype(core::Reply::body)& body) {
  Status status = encode(head, body, frame_);
  if (!status.ok()) status = encode(head, status.error(), frame_);
  return status.ok() ? send(peer) : status;
}

Status Replies::send(transport::PeerId to) {
  if (!is_ring_peer(to)) return server_.send(to, frame_.bytes());
  Peer* peer = sessions_.any(engine_of(to));  // an ended session still hears that it ended
  return peer && peer->ring ? peer->ring->send(frame_.bytes()) : Status();
}

void Replies::end(const Peer& peer) {
  server_.set_trusted(peer.connection_of_commands, false);
  std::erase_if(waiting_, [&](const auto& entry) {
    const Waiting& command = entry.second;
    if (command.engine != peer.engine) return false;
    const Error ended = make_error(ErrorCode::kStaleSession, "the session has ended: attach again");
    (void)answer(command.peer, command.head, ended).ok();  // it is dropped as it is
    return true;
  });
}

}  // namespace kvd::daemon
