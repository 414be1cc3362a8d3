#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"

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

  /// Becomes readable when commands may have arrived. It is edge-triggered and every call below may
  /// swallow the edge: call receive() until it returns none right before each wait.
  [[nodiscard]] virtual int fd() const = 0;

  /// The next command, without waiting. A message that was refused, or a bounded piece of one,
  /// comes out as an empty frame, so that a caller who counts its calls is kept by nobody.
  [[nodiscard]] virtual std::optional<Incoming> receive() = 0;

  /// Queues a reply without waiting.
  /// Errors: PeerGone when the peer left or has not read `queue_limit` replies: drop its session.
  virtual Status send(PeerId peer, std::span<const std::byte> frame) = 0;

  /// Messages refused before they became commands: several parts, a routing id of the client's own
  /// choosing, no credentials.
  [[nodiscard]] virtual std::uint64_t dropped() const = 0;

  /// What clients connect to.
  [[nodiscard]] virtual const std::string& endpoint() const = 0;
};

struct ZmqServerOptions {
  std::string path;                 ///< of the socket file, mode 0660
  std::vector<uid_t> allowed_uids;  ///< the kernel's word decides; empty: everyone with access
  int queue_limit = 64;             ///< messages waiting for or from one peer
};

/// Listens on ipc://path. A socket file left by a dead daemon is replaced, one that answers is not.
/// Errors: Unavailable when another process listens there or the folder is not usable,
/// InvalidArgument for a path too long.
[[nodiscard]] Result<std::unique_ptr<CommandServer>> zmq_command_server(
    const ZmqServerOptions& options);

}  // namespace kvd::transport
