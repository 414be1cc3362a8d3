#include "kvd/daemon/service/commands.hpp"

#include <string>
#include <utility>

#include "kvd/daemon/sessions/ring_peer.hpp"

namespace kvd::daemon {

namespace {

constexpr int kCommandsATurn = 256;
/// How long commands may keep the loop before copies and sockets get their turn.
constexpr Nanoseconds kCommandTurn = std::chrono::milliseconds(1);

}  // namespace

// A command that came meanwhile may be next.
bool Commands::take_turn() {
  TimePoint now = uses_.events.now();
  const TimePoint until = now + kCommandTurn;
  do {
    hold();
    const auto peer = uses_.turns.next();
    if (!peer) break;
    if (const auto kept = uses_.server.release(*peer)) on_command(*kept);
    due_ = true;  // more of it may have been read already
    const TimePoint begin = std::exchange(now, uses_.events.now());
    uses_.turns.took(now - begin);
  } while (now < until);
  return waiting();
}

// ZeroMQ hands over frames without regard to domains. So one command of each peer is read, and no
// more before that one has had its turn.
void Commands::hold() {
  for (int i = 0; i < kCommandsATurn; ++i) {
    const auto incoming = uses_.server.receive();
    if (!incoming) {
      due_ = false;
      return;
    }
    if (incoming->frame.empty()) continue;
    const auto header = wire::peek_command(incoming->frame);
    const auto sender = header ? identify(*header, *incoming) : Result<Peer*>(nullptr);
    if (!sender.ok() || *sender == nullptr) {
      on_command(*incoming);  // which says what is wrong with it
    } else {
      uses_.turns.add((*sender)->domain, incoming->peer);
      uses_.server.keep(incoming->peer);
    }
  }
}

Result<Peer*> Commands::identify(const wire::CommandHeader& header,
                                 const transport::Incoming& incoming) {
  Peer* peer = uses_.sessions.of_generation(Generation(header.generation));
  if (!peer) {
    return make_error(ErrorCode::kStaleSession,
                      "this generation has ended or never was: attach again");
  }
  if (!equal_constant_time(peer->key, SessionKey{header.key}) ||
      incoming.uid != peer->process.uid) {
    return make_error(ErrorCode::kPermissionDenied,
                      "the session key is wrong: use the one from the attach socket");
  }
  // A session has one transport, so that its commands have one order.
  if (peer->ring ? incoming.peer != ring_peer(peer->engine) : is_ring_peer(incoming.peer)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "this session chose another transport for its commands at attach");
  }
  return peer;
}

Result<Peer*> Commands::authenticate(const wire::CommandHeader& header,
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

// A session has one connection, so that there are never more connections than sessions.
void Commands::trust(Peer& peer, transport::PeerId connection) {
  if (peer.ring || peer.connection_of_commands == connection) return;
  uses_.server.set_trusted(peer.connection_of_commands, false);
  uses_.server.set_trusted(connection, true);
  peer.connection_of_commands = connection;
}

void Commands::on_command(const transport::Incoming& incoming) {
  const auto header = wire::peek_command(incoming.frame);
  if (!header) {
    ++stale_;
    return;  // no frame of ours: there is nobody to answer
  }
  ReplyHead head{uses_.boot, Generation(header->generation), header->sequence, wire::kVersionMax,
                 static_cast<wire::MessageType>(header->frame.type)};
  const auto peer = authenticate(*header, incoming);
  if (!peer.ok()) {
    ++stale_;
    return answer(incoming.peer, head, peer.error(), EngineId());
  }
  const EngineId engine = (*peer)->engine;
  head.version = (*peer)->version;
  uses_.ends.beat(**peer);
  const Status submitted = submit(**peer, head, incoming);
  if (!submitted.ok()) answer(incoming.peer, head, submitted.error(), engine);
}

Status Commands::submit(const Peer& peer, const ReplyHead& head,
                        const transport::Incoming& incoming) {
  KVD_ASSIGN_OR_RETURN(const auto command, wire::decode_command(incoming.frame));
  const TimePoint now = uses_.events.now();
  KVD_ASSIGN_OR_RETURN(auto body, to_core(command.body, now));
  KVD_TRY(uses_.groups.check(peer, body));
  const core::ReplyTo reply_to = uses_.replies.expect({peer.engine, incoming.peer, head});
  uses_.events.feed(
      core::Command{peer.speaks_for(), reply_to, now + Nanoseconds(command.header.timeout_ns),
                    std::move(body), peer.rank},
      now);
  if (std::holds_alternative<wire::ScheduleCommand>(command.body)) {
    schedule_seconds_.add(to_seconds(uses_.events.now() - now));
  }
  return {};
}

void Commands::answer(transport::PeerId peer, const ReplyHead& head, const Error& error,
                      EngineId engine) {
  const Status sent = uses_.replies.answer(peer, head, error);
  if (!sent.ok() && engine) uses_.ends.drop(engine, sent.error().message);
}

}  // namespace kvd::daemon
