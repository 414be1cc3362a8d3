#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ipc/transport/unix_socket.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"
#include "ipc/wire/messages.hpp"

/// The attach socket: frames with file descriptors between a peer the kernel vouches for and the
/// daemon (PROTOCOL.md section 2). Unix-domain, SOCK_SEQPACKET, every fd CLOEXEC; no call waits
/// unless it is given a time.
namespace kvd::transport {

constexpr std::size_t kMaxFdsPerFrame = 4;

/// Identifies the process at the other end, as the kernel says.
struct PeerIdentity {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  UniqueFd pidfd;  ///< readable once the process is gone
};

/// One received frame, in private memory.
struct AttachFrame {
  std::array<std::byte, wire::kMaxAttachFrame> storage;
  std::size_t size = 0;
  std::vector<UniqueFd> fds;

  [[nodiscard]] std::span<const std::byte> bytes() const { return {storage.data(), size}; }
};

/// One end of an attach connection.
/// Owner: one thread at a time for each direction.
class AttachConnection {
 public:
  AttachConnection() = default;  ///< to nobody
  /// With a `closer` the peer may send no descriptors. Those that it sends all the same go to the
  /// closer.
  explicit AttachConnection(UniqueFd socket, std::shared_ptr<Closer> closer = nullptr)
      : socket_(std::move(socket)), closer_(std::move(closer)) {}
  AttachConnection(AttachConnection&&) noexcept = default;
  AttachConnection& operator=(AttachConnection&& other) noexcept;
  ~AttachConnection();

  [[nodiscard]] int fd() const { return socket_.get(); }

  /// Errors: PeerGone when the peer has died already.
  [[nodiscard]] Result<PeerIdentity> peer() const;
  /// The user at the other end, as the kernel says. Errors: PeerGone.
  [[nodiscard]] Result<uid_t> uid() const;

  /// Sends without waiting; all or nothing. The fds stay the caller's.
  /// Errors: WouldBlock when the peer does not read, PeerGone.
  Status send(std::span<const std::byte> frame, std::span<const int> fds = {});
  /// Waits up to `timeout` for room. Errors: DeadlineExceeded, PeerGone.
  Status send(std::span<const std::byte> frame, std::span<const int> fds, Nanoseconds timeout);

  /// Takes a frame that has come. Errors: WouldBlock when there is none, PeerGone after the last
  /// one, InvalidArgument for a frame over kMaxAttachFrame or with more than kMaxFdsPerFrame fds,
  /// which is dropped, its fds closed.
  [[nodiscard]] Result<AttachFrame> receive();
  /// Waits up to `timeout` for one. Errors: DeadlineExceeded; else as receive().
  [[nodiscard]] Result<AttachFrame> receive(Nanoseconds timeout);

 private:
  UniqueFd socket_;
  std::shared_ptr<Closer> closer_;
};

/// Connects to a daemon's attach socket.
/// Errors: Unavailable naming the path when nobody listens there, PermissionDenied,
/// DeadlineExceeded, InvalidArgument for a path too long.
[[nodiscard]] Result<AttachConnection> connect_attach(const std::string& path, Nanoseconds timeout);

/// The daemon's end; see UnixListener.
class AttachListener {
 public:
  /// Errors: those of UnixListener::create.
  static Result<AttachListener> create(const std::string& path);

  [[nodiscard]] int fd() const { return listener_.fd(); }
  [[nodiscard]] const std::string& path() const { return listener_.path(); }
  /// As UnixListener::restore().
  [[nodiscard]] Result<bool> restore() { return listener_.restore(); }

  /// A waiting connection, or none. Errors: those of UnixListener::accept.
  [[nodiscard]] Result<std::optional<AttachConnection>> accept();

 private:
  explicit AttachListener(UnixListener listener) : listener_(std::move(listener)) {}

  UnixListener listener_;
};

}  // namespace kvd::transport
