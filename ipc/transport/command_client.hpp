#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::transport {

/// The engine's end of a command transport: one command at a time, each answered or failed by its
/// deadline.
/// Owner: one thread at a time. Dead in a forked child: calls return PeerGone there, and destroying
/// it touches nothing that the parent uses.
class CommandClient {
 public:
  virtual ~CommandClient() = default;

  /// Sends the frame and waits for the reply with its sequence; replies to earlier commands that
  /// were given up are dropped. The result is private memory, valid until the next call.
  /// Errors: DeadlineExceeded; WouldBlock when it could not be sent until then, by a daemon that
  /// `watch` (an attach connection's fd; -1: none) says is there; Unavailable when none is, or as
  /// soon as `watch` says that it hung up; PeerGone in a forked child.
  [[nodiscard]] virtual Result<std::span<const std::byte>> call(std::span<const std::byte> frame,
                                                                std::uint64_t sequence,
                                                                Nanoseconds timeout,
                                                                int watch = -1) = 0;
};

/// Connects to Welcome::command_endpoint; returns before the connection stands, the first call
/// waits for it.
/// Errors: InvalidArgument for an endpoint that is none, Unavailable when out of fds.
[[nodiscard]] Result<std::unique_ptr<CommandClient>> zmq_command_client(
    const std::string& endpoint);

}  // namespace kvd::transport
