#include "kvd/daemon/daemon.hpp"

/// Commands from the transport to the Controller: who may say them, and where the answer goes.
namespace kvd::daemon {

namespace {

constexpr int kCommandsATurn = 256;

}  // namespace

bool Daemon::take_commands() {
  // So many, then everything else gets its turn, however fast they come.
  for (int i = 0; i < kCommandsATurn; ++i) {
    const auto incoming = commands_->receive();
    if (!incoming) return false;
    on_command(*incoming);
  }
  return true;
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
  if (header.sequence != peer->sequence + 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "sequence " + std::to_string(header.sequence) + " where " +
                          std::to_string(peer->sequence + 1) + " was due: commands are numbered " +
                          "one by one");
  }
  peer->sequence = header.sequence;
  return peer;
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
  const TimePoint now = clock_.now();
  const core::ReplyTo reply_to(++last_reply_to_);
  waiting_.emplace(reply_to, Waiting{engine, incoming.peer, head});
  feed(core::Command{engine, reply_to, now + Nanoseconds(command->header.timeout_ns),
                     std::move(*body)},
       now);
}

void Daemon::answer(transport::PeerId peer, const ReplyHead& head,
                    const decltype(core::Reply::body)& body, EngineId engine) {
  Status status = encode(head, body, reply_frame_);
  if (!status.ok()) status = encode(head, status.error(), reply_frame_);
  if (status.ok()) status = commands_->send(peer, reply_frame_.bytes());
  if (!status.ok() && engine) drop(engine, "does not read its replies");
}

}  // namespace kvd::daemon
