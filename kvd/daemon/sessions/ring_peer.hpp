#pragma once

#include "ipc/transport/command_server.hpp"
#include "ipc/vocabulary/ids.hpp"

/// Peers of rings are numbered by engine, above those of ZeroMQ.
namespace kvd::daemon {

constexpr std::uint64_t kRingPeer = std::uint64_t{1} << 63;

[[nodiscard]] inline transport::PeerId ring_peer(EngineId engine) {
  return transport::PeerId(kRingPeer | engine.value);
}
[[nodiscard]] inline bool is_ring_peer(transport::PeerId peer) {
  return (peer.value & kRingPeer) != 0;
}
/// Precondition: is_ring_peer.
[[nodiscard]] inline EngineId engine_of(transport::PeerId ring) {
  return EngineId(static_cast<std::uint32_t>(ring.value & ~kRingPeer));
}

}  // namespace kvd::daemon
