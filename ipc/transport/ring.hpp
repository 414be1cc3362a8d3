#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ipc/shm/ring.hpp"
#include "ipc/transport/command_client.hpp"
#include "ipc/transport/spin.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::transport {

/// What an engine needs to open its end, in the order in which Welcome carries it.
constexpr std::size_t kRingFds = 2;  // the ring, the daemon's bell

/// An eventfd that a peer rings. This side's epoll waits for its edges, so nobody silences it.
/// Errors: Unavailable when out of fds.
[[nodiscard]] Result<UniqueFd> make_bell();

/// The daemon's end of one session's ring: commands in, replies out. The daemon sleeps on an
/// eventfd, its bell, so that one epoll waits for all; the engine on the futex that says that it
/// sleeps.
/// Source: ipc/PROTOCOL.md section 2 (the ring).
/// Owner:  one thread. The peer may write every byte of the ring at any time.
class RingPort {
 public:
  /// Errors: OutOfMemory, Unavailable when out of fds.
  static Result<RingPort> create();

  /// For the engine; close() them once sent.
  [[nodiscard]] std::vector<int> peer_fds() const;
  void close_peer_fds();

  /// Readable once the bell rang, and never silenced: wait for its edges.
  [[nodiscard]] int bell() const { return bell_.get(); }

  /// The next command, in private memory until the next call; none: the ring is empty.
  /// Errors: InvalidArgument for a ring no honest engine leaves: drop its session.
  [[nodiscard]] Result<std::optional<std::span<const std::byte>>> receive() {
    return commands_.read();
  }
  /// Errors: PeerGone when the engine does not read its replies: drop its session.
  [[nodiscard]] Status send(std::span<const std::byte> frame);

  /// Call before sleeping on bell(). False: a command came meanwhile.
  [[nodiscard]] bool fall_asleep() { return commands_.fall_asleep(); }
  [[nodiscard]] bool empty() const { return commands_.empty(); }

 private:
  RingPort(shm::RingMapping mapping, UniqueFd ring, UniqueFd bell);

  shm::RingMapping mapping_;
  shm::RingReader commands_;
  shm::RingWriter replies_;
  UniqueFd ring_;
  UniqueFd bell_;
};

/// The engine's end, of the fds that came with Welcome.
/// Errors: InvalidArgument when they are no ring.
[[nodiscard]] Result<std::unique_ptr<CommandClient>> ring_command_client(
    UniqueFd ring, UniqueFd bell, Nanoseconds spin = yielding_spin());

}  // namespace kvd::transport
