#include <algorithm>

#include "kvd/daemon/daemon.hpp"

/// Commands from the transport to the Controller: who may say them, and where the answer goes.
namespace kvd::daemon {

namespace {

constexpr int kCommandsATurn = 256;

/// Peers of rings are numbered by engine, above those of ZeroMQ.
constexpr std::uint64_t kRingPeer = std::uint64_t{1} << 63;
transport::PeerId ring_peer(EngineId engine) { return transport::PeerId(kRingPeer | engine.value); }
bool is_ring_peer(transport::PeerId peer) { return (peer.value & kRingPeer) != 0; }
EngineId engine_of(transport::PeerId ring) {
  return EngineId(static_cast<std::uint32_t>(ring.value & ~kRingPeer));
}

}  // namespace

bool Daemon::take_commands() {
  // So many, then everything else gets its turn, however fast they come.
  for (int i = 0; i < kCommandsATurn; ++i) {
    const auto incoming = commands_->receive();
    if (!incoming) {
      commands_due_ = false;
      return false;
    }
    if (!incoming->frame.empty()) on_command(*incoming);
  }
  return true;
}

bool Daemon::take_ring_commands() {
  bool more = false;
  do {
    for (const EngineId engine : awake_rings_) more = drain_ring(engine) || more;
  } while (!more && ring_filled_while_looking());
  if (more) return true;
  std::erase_if(awake_rings_, [&](EngineId engine) {
    Peer* peer = connected(engine);
    return !peer || peer->ring->fall_asleep();
  });
  return !awake_rings_.empty();
}

// Whether it had its turn to the full.
bool Daemon::drain_ring(EngineId engine) {
  for (int i = 0; i < kCommandsATurn; ++i) {
    Peer* peer = connected(engine);  // a command may have dropped it
    if (!peer) return false;
    const auto frame = peer->ring->receive();
    if (!frame.ok()) {
      peer->ended ? end_silenced(*peer) : drop(engine, frame.error().message);
      return false;
    }
    if (!*frame) return false;
    on_command({ring_peer(engine), **frame, peer->uid, peer->pid});
  }
  return true;
}

// Engines in the middle of a step with streamed layers are looked at as well, and copies for them.
bool Daemon::ring_filled_while_looking() {
  if (ring_spin_.count() == 0) return false;
  if (awake_rings_.empty() && !mover_->awaits_progress()) return false;
  const TimePoint until = clock_.now() + ring_spin_;
  do {
    for (const EngineId engine : awake_rings_) {
      Peer* peer = connected(engine);
      if (peer && !peer->ring->empty()) return true;
    }
    if (mover_->busy() || mover_->awaits_progress()) take_copies();
  } while (clock_.now() < until);
  return false;
}

void Daemon::on_bell(EngineId engine) {
  Peer* peer = connected(engine);
  if (!peer || !peer->ring) return;
  if (std::find(awake_rings_.begin(), awake_rings_.end(), engine) == awake_rings_.end()) {
    awake_rings_.push_back(engine);
  }
}

Result<Peer*> Daemon::authenticate(const wire::CommandHeader& header,
                                   const transport::Incoming& incoming) {
  const auto it = generations_.find(Generation(header.generation));
  Peer* peer = it == generations_.end() ? nullptr : find(it->second);
  if (!peer) {
    return make_error(ErrorCode::kStaleSession,
                      "this generation has ended or never was: attach again");
  }
  if (!equal_constant_time(peer->key, SessionKey{header.key}) || incoming.uid != peer->uid) {
    return make_error(ErrorCode::kPermissionDenied,
                      "the session key is wrong: use the one from the attach socket");
  }
  // One session, one transport: only so have its commands one order.
  if (peer->ring ? incoming.peer != ring_peer(peer->engine) : is_ring_peer(incoming.peer)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "this session chose another transport for its commands at attach");
  }
  if (header.sequence != peer->sequence + 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "sequence " + std::to_string(header.sequence) + " where " +
                          std::to_string(peer->sequence + 1) + " was due: commands are numbered " +
                          "one by one");
  }
  peer->sequence = header.sequence;
  trust(*peer, incoming.peer);
  return peer;
}

// One connection a session, so that there are never more of them than sessions.
void Daemon::trust(Peer& peer, transport::PeerId connection) {
  if (peer.ring || peer.connection_of_commands == connection) return;
  commands_->set_trusted(peer.connection_of_commands, false);
  commands_->set_trusted(connection, true);
  peer.connection_of_commands = connection;
}

void Daemon::on_command(const transport::Incoming& incoming) {
  const auto header = wire::peek_command(incoming.frame);
  if (!header) {
    ++stale_commands_;
    return;  // no frame of ours: there is nobody to answer
  }
  ReplyHead head{boot_, Generation(header->generation), header->sequence, wire::kVersionMax,
                 static_cast<wire::MessageType>(header->frame.type)};
  const auto peer = authenticate(*header, incoming);
  if (!peer.ok()) {
    ++stale_commands_;
    answer(incoming.peer, head, peer.error(), EngineId());
    return;
  }
  const EngineId engine = (*peer)->engine;
  head.version = (*peer)->version;
  beat(**peer, clock_.now());

  const auto command = wire::decode_command(incoming.frame);
  if (!command.ok()) {
    answer(incoming.peer, head, command.error(), engine);
    return;
  }
  auto body = to_core(command->body);
  if (!body.ok()) {
    answer(incoming.peer, head, body.error(), engine);
    return;
  }
  if (const Status status = check_group(**peer, *body); !status.ok()) {
    answer(incoming.peer, head, status.error(), engine);
    return;
  }
  const TimePoint now = clock_.now();
  const core::ReplyTo reply_to(++last_reply_to_);
  waiting_.emplace(reply_to, Waiting{engine, incoming.peer, head});
  feed(core::Command{(*peer)->speaks_for(), reply_to, now + Nanoseconds(command->header.timeout_ns),
                     std::move(*body), (*peer)->rank},
       now);
}

void Daemon::answer(transport::PeerId peer, const ReplyHead& head,
                    const decltype(core::Reply::body)& body, EngineId engine) {
  Status status = encode(head, body, reply_frame_);
  if (!status.ok()) status = encode(head, status.error(), reply_frame_);
  if (status.ok()) status = send_reply(peer);
  if (!status.ok() && engine) drop(engine, status.error().message);
}

Status Daemon::send_reply(transport::PeerId to) {
  if (!is_ring_peer(to)) return commands_->send(to, reply_frame_.bytes());
  const auto it = peers_.find(engine_of(to));  // an ended session still hears that it ended
  if (it == peers_.end() || !it->second.ring) return {};
  return it->second.ring->send(reply_frame_.bytes());
}

}  // namespace kvd::daemon
