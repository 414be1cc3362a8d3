#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/transport/silent_bounds.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::transport {

/// A connection of the command transport: where a reply goes. It proves nothing about who the peer
/// is; the session key in the frame does.
using PeerId = Id<struct PeerIdTag, std::uint64_t>;

/// One command frame as it came in.
struct Incoming {
  PeerId peer;
  std::span<const std::byte> frame;  ///< private memory, valid until the next receive()
  uid_t uid = 0;                     ///< of the peer, as the kernel says
  pid_t pid = 0;
};

/// The daemon's end of a command transport. The default is ZeroMQ (zmq_command_server below); the
/// interface exists so that another carries the same frames.
/// Owner: one thread.
class CommandServer {
 public:
  virtual ~CommandServer() = default;

  /// Readable while commands may wait that receive() has not looked at. Commands that it has looked
  /// at may wait as well, so call it until it returns none before each wait.
  [[nodiscard]] virtual int fd() const = 0;

  /// The next command, without waiting. After a bounded piece of work without a command an empty
  /// frame comes out, so that nobody can hold up a caller who counts calls.
  [[nodiscard]] virtual std::optional<Incoming> receive() = 0;

  /// The last command of receive() stays where it is until release(), and nothing more is read from
  /// its connection: what else the peer sends waits on its own side.
  virtual void keep(PeerId peer) = 0;
  /// The command that was kept, valid until the next receive(). None: the peer has left.
  [[nodiscard]] virtual std::optional<Incoming> release(PeerId peer) = 0;

  /// Queues a reply without waiting.
  /// Errors: PeerGone when the peer left, has not read `queue_limit` replies, or unread replies
  ///         fill its user's share of `buffers`: drop its session.
  virtual Status send(PeerId peer, std::span<const std::byte> frame) = 0;

  /// Says whether the connection belongs to a session. Connections without one give way to others.
  virtual void set_trusted(PeerId peer, bool trusted) = 0;

  /// Goes on accepting after it had to stop for want of descriptors. Call it now and then.
  virtual void accept_again() = 0;

  /// Listens anew if clients no longer find the socket because its file was removed or replaced.
  /// Returns whether that was needed. Connected clients notice nothing. Errors: why it cannot
  /// listen.
  [[nodiscard]] virtual Result<bool> restore() = 0;

  /// Connections that were hung up on because of what they sent.
  [[nodiscard]] virtual std::uint64_t dropped() const = 0;

  /// What clients connect to.
  [[nodiscard]] virtual const std::string& endpoint() const = 0;
};

struct ZmqServerOptions {
  std::string path;                 ///< of the socket file, mode 0660
  std::vector<uid_t> allowed_uids;  ///< the kernel's word decides; empty: everyone with access
  int queue_limit = 64;             ///< replies waiting for one peer
  SilentBounds silent = {};         ///< connections that are not trusted
  /// All frames on their way in and out. Users share it (FairShares). A connection whose user's
  /// share is full is hung up on when it sends more.
  Bytes buffers = kMiB * 96;
  /// Whether the group that a peer runs with stands for a user. None: it never does.
  std::function<bool(uid_t, gid_t)> by_group{};
};

/// Listens on ipc://path for DEALERs of ZeroMQ, in whose protocol it speaks itself: libzmq ends the
/// process when no descriptor is left for a connection, and collects messages of many parts without
/// a bound.
/// Errors: those of UnixListener::create; Unavailable when out of fds.
[[nodiscard]] Result<std::unique_ptr<CommandServer>> zmq_command_server(
    const ZmqServerOptions& options);

}  // namespace kvd::transport
