#include "kvd/daemon/sessions/session_frames.hpp"

namespace kvd::daemon {

void SessionFrames::on_socket(EngineId engine) {
  Peer* peer = sessions_.any(engine);
  if (!peer) return;
  if (peer->ended) {
    if (peer->connected()) hear_goodbye(*peer);
    return;
  }
  for (int i = 0; i < kFramesATurn; ++i) {
    if (!hear(*peer)) return;
    peer = sessions_.find(engine);  // an effect may have dropped it
    if (!peer) return;
  }
}

bool SessionFrames::hear(Peer& peer) {
  const auto frame = peer.connection.receive();
  if (!frame.ok()) {
    if (frame.error().code == ErrorCode::kWouldBlock) return false;
    ends_.drop(peer.engine, frame.error().code == ErrorCode::kPeerGone
                                ? "closed its socket without goodbye"
                                : frame.error().message);
    return false;
  }
  const auto message = wire::decode_attach(frame->bytes());
  if (message.ok()) return obey(peer, *message);
  ends_.drop(peer.engine, message.error().message);
  return false;
}

bool SessionFrames::obey(Peer& peer, const wire::AttachMessage& message) {
  if (const auto* mapped = std::get_if<wire::SlabMapped>(&message)) {
    if (mapped->notice.region == 0) groups_.on_slab(peer, SlabIndex(mapped->notice.slab), true);
    return true;
  }
  if (const auto* unmapped = std::get_if<wire::SlabUnmapped>(&message)) {
    groups_.on_slab(peer, SlabIndex(unmapped->notice.slab), false);
    return true;
  }
  if (std::holds_alternative<wire::Goodbye>(message)) {
    ends_.leave(peer);
  } else {
    ends_.drop(peer.engine, "sent a frame that only the daemon sends");
  }
  return false;
}

void SessionFrames::hear_goodbye(Peer& peer) {
  for (int i = 0; i < kFramesATurn; ++i) {
    const auto frame = peer.connection.receive();
    if (!frame.ok() && frame.error().code == ErrorCode::kWouldBlock) return;
    if (!frame.ok()) return ends_.end_silenced(peer);
    const auto message = wire::decode_attach(frame->bytes());
    if (!message.ok()) return ends_.end_silenced(peer);
    if (std::holds_alternative<wire::Goodbye>(*message)) return ends_.leave_silenced(peer);
  }
}

}  // namespace kvd::daemon
