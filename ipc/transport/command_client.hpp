#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::transport {

/// The engine's end of a command transport. It sends one command at a time, and each is answered or
/// fails by its deadline. Before it commands may be posted, whose replies are awaited later or
/// never.
/// Owner: one thread at a time. Dead in a forked child: calls return PeerGone there, and destroying
/// it touches nothing that the parent uses.
class CommandClient {
 public:
  using Listener = std::function<void(std::span<const std::byte> reply)>;

  virtual ~CommandClient() = default;

  /// Hears every reply that comes during a call and that the call does not wait for: replies to
  /// commands that were posted or given up.
  void listen(Listener listener) { listener_ = std::move(listener); }

  /// The listener hears the replies that have come.
  /// Errors: of the transport's reading; PeerGone in a forked child.
  [[nodiscard]] virtual Status take_replies() = 0;

  /// Leaves the frame for the daemon, which hears of it with the next call or await() at the
  /// latest: waking it costs as much as most commands. Does not wait for the reply.
  /// Errors: WouldBlock when there is no room for it now; PeerGone in a forked child.
  [[nodiscard]] virtual Status post(std::span<const std::byte> frame) = 0;

  /// Waits for the reply to a posted command, unless the listener has heard it. Errors: as call(),
  /// without WouldBlock.
  [[nodiscard]] virtual Result<std::span<const std::byte>> await(std::uint64_t sequence,
                                                                 Nanoseconds timeout,
                                                                 int watch = -1) = 0;

  /// Sends the frame and waits for the reply with its sequence; the listener hears those to earlier
  /// commands. The result is private memory, valid until the next call.
  /// Errors: DeadlineExceeded; WouldBlock when it could not be sent by then although `watch` (an
  ///         attach connection's fd; -1: none) says that the daemon is there; Unavailable when
  ///         there is no daemon, or as soon as `watch` says that it hung up; PeerGone in a forked
  ///         child.
  [[nodiscard]] virtual Result<std::span<const std::byte>> call(std::span<const std::byte> frame,
                                                                std::uint64_t sequence,
                                                                Nanoseconds timeout,
                                                                int watch = -1) = 0;

 protected:
  void pass(std::span<const std::byte> reply) const {
    if (listener_) listener_(reply);
  }

 private:
  Listener listener_;
};

/// Connects to Welcome::command_endpoint. Returns before the connection is made; the first call
/// waits for it.
/// Errors: InvalidArgument for an endpoint that is none, Unavailable when out of fds.
[[nodiscard]] Result<std::unique_ptr<CommandClient>> zmq_command_client(
    const std::string& endpoint);

}  // namespace kvd::transport
