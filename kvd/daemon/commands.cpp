#include <algorithm>
#include <set>

#include "kvd/daemon/daemon.hpp"

/// Commands from the transport to the Controller: who may say them, and where the answer goes.
namespace kvd::daemon {

namespace {

constexpr int kCommandsATurn = 256;
/// What rings may take of the loop before sockets and timers get their turn.
constexpr Nanoseconds kRingTurn = std::chrono::milliseconds(1);

/// Peers of rings are numbered by engine, above those of ZeroMQ.
constexpr std::uint64_t kRingPeer = std::uint64_t{1} << 63;
transport::PeerId ring_peer(EngineId engine) { return transport::PeerId(kRingPeer | engine.value); }
bool is_ring_peer(transport::PeerId peer) { return (peer.value & kRingPeer) != 0; }
EngineId engine_of(transport::PeerId ring) {
  return EngineId(static_cast<std::uint32_t>(ring.value & ~kRingPeer));
}

}  // namespace

// One command of each domain, then everything else gets its turn.
bool Daemon::take_commands() {
  hold_commands();
  for (std::size_t domains = turns_.domains(); domains > 0; --domains) {
    if (const auto held = turns_.next()) on_command(held->incoming());
  }
  return commands_due_ || !turns_.empty();
}

// ZeroMQ hands over what its peers sent without a look at their domains.
void Daemon::hold_commands() {
  for (int i = 0; i < kCommandsATurn; ++i) {
    const auto incoming = commands_->receive();
    if (!incoming) {
      commands_due_ = false;
      return;
    }
    if (incoming->frame.empty()) continue;
    const auto header = wire::peek_command(incoming->frame);
    const auto sender = header ? identify(*header, *incoming) : Result<Peer*>(nullptr);
    if (!sender.ok() || *sender == nullptr) {
      on_command(*incoming);  // which says what is wrong with it
    } else if (!turns_.add((*sender)->domain, (*sender)->engine, *incoming)) {
      drop((*sender)->engine, "it sent " + std::to_string(Turns::kMostOfASession) +
                                  " commands without waiting for an answer");
    }
  }
}

bool Daemon::take_ring_commands() {
  const TimePoint until = clock_.now() + kRingTurn;
  do {
    if (serve_rings() || ring_filled_while_looking()) continue;
    std::erase_if(awake_rings_, [&](EngineId engine) {
      Peer* peer = connected(engine);
      return !peer || peer->ring->fall_asleep();
    });
    return !awake_rings_.empty();
  } while (turns_.empty() && clock_.now() < until);
  return true;
}

// One command of each domain; of its rings the one that was served longest ago comes first. Whether
// there was any.
bool Daemon::serve_rings() {
  std::set<DomainId> served;
  for (const EngineId engine : std::vector(awake_rings_)) {
    const Peer* peer = connected(engine);  // a command may have dropped it
    if (!peer || served.contains(peer->domain)) continue;
    const DomainId domain = peer->domain;
    if (!serve_ring(engine)) continue;
    served.insert(domain);
    const auto at = std::find(awake_rings_.begin(), awake_rings_.end(), engine);
    if (at != awake_rings_.end()) std::rotate(at, at + 1, awake_rings_.end());
  }
  return !served.empty();
}

bool Daemon::serve_ring(EngineId engine) {
  Peer* peer = connected(engine);
  const auto frame = peer->ring->receive();
  if (!frame.ok()) {
    peer->ended ? end_silenced(*peer) : drop(engine, frame.error().message);
    return false;
  }
  if (!*frame) return false;
  on_command({ring_peer(engine), **frame, peer->uid, peer->pid});
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

Result<Peer*> Daemon::identify(const wire::CommandHeader& header,
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
  return peer;
}

Result<Peer*> Daemon::authenticate(const wire::CommandHeader& header,
                                   const transport::Incoming& incoming) {
  KVD_ASSIGN_OR_RETURN(Peer* const peer, identify(header, incoming));
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
