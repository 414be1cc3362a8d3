#include "ipc/transport/attach.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ipc/transport/unix_socket.hpp"
#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/clock.hpp"

namespace kvd::transport {
namespace {

#ifndef SO_PEERPIDFD
constexpr int SO_PEERPIDFD = 77;  // Linux 6.5; not in Debian 12's headers
#endif

bool peer_left(int error) {
  return error == EPIPE || error == ECONNRESET || error == ENOTCONN || error == ECONNREFUSED;
}

Error gone() { return make_error(ErrorCode::kPeerGone, "the attach peer has hung up"); }

/// Waits until the socket can do what `events` says.
Status wait_for(int fd, short events, TimePoint deadline) {
  const SteadyClock clock;
  while (true) {
    const Nanoseconds left = std::max(Nanoseconds(0), deadline - clock.now());
    const timespec timeout{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
    pollfd item{fd, events, 0};
    const int ready = ::ppoll(&item, 1, &timeout, nullptr);
    if (ready > 0) return {};
    if (ready == 0) {
      return make_error(ErrorCode::kDeadlineExceeded, "no answer on the attach socket in time");
    }
    if (errno != EINTR) return errno_error(ErrorCode::kInternal, "poll of the attach socket");
  }
}

/// Repeats a call that does not wait, until it succeeds or the deadline has come.
template <class Call>
auto retry_until(int fd, short events, Nanoseconds timeout, Call call) -> decltype(call()) {
  const TimePoint deadline = SteadyClock().now() + timeout;
  while (true) {
    auto result = call();
    if (result.ok() || result.error().code != ErrorCode::kWouldBlock) return result;
    KVD_TRY(wait_for(fd, events, deadline));
  }
}

}  // namespace

AttachConnection& AttachConnection::operator=(AttachConnection&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(closer_, other.closer_);
  return *this;
}

// Unread frames end with the socket, and so do the descriptors that they brought.
AttachConnection::~AttachConnection() {
  if (closer_ && socket_.valid()) closer_->close(std::move(socket_));
}

Result<uid_t> AttachConnection::uid() const {
  KVD_ASSIGN_OR_RETURN(const ucred who, peer_credentials(fd()));
  return who.uid;
}

Result<PeerIdentity> AttachConnection::peer() const {
  KVD_ASSIGN_OR_RETURN(const ucred who, peer_credentials(fd()));
  PeerIdentity peer{who.pid, who.uid, who.gid, UniqueFd()};
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (::getsockopt(fd(), SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) != 0) {
    // Older kernels: the pid may have been reused by now, which SO_PEERPIDFD rules out.
    pidfd = static_cast<int>(::syscall(SYS_pidfd_open, who.pid, 0));
  }
  if (pidfd < 0 && who.pid == 0) {
    return make_error(ErrorCode::kUnsupported,
                      "kvd does not see the processes of engines, and before Linux 6.5 it cannot "
                      "lend them memory then: run it with hostPID: true (docker: --pid host)");
  }
  if (pidfd < 0) return errno_error(ErrorCode::kPeerGone, "pidfd of the peer");
  peer.pidfd = UniqueFd(pidfd);
  return peer;
}

Status AttachConnection::send(std::span<const std::byte> frame, std::span<const int> fds) {
  KVD_CHECK(fds.size() <= kMaxFdsPerFrame, "too many fds for one attach frame");
  iovec data{const_cast<std::byte*>(frame.data()), frame.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFdsPerFrame * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(part), fds.data(), fds.size_bytes());
  }
  while (::sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return make_error(ErrorCode::kWouldBlock, "the attach peer does not read its socket");
    }
    return peer_left(errno) ? gone() : errno_error(ErrorCode::kInternal, "send on attach socket");
  }
  return {};
}

Status AttachConnection::send(std::span<const std::byte> frame, std::span<const int> fds,
                              Nanoseconds timeout) {
  return retry_until(fd(), POLLOUT, timeout, [&] { return send(frame, fds); });
}

Result<AttachFrame> AttachConnection::receive() {
  AttachFrame frame;
  iovec data{frame.storage.data(), frame.storage.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFdsSent * sizeof(int))];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  bool reset = false;
  do {
    got = ::recvmsg(fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // A peer that closes with frames of ours unread leaves this error, once, before its own last
    // frames: a goodbye may be among them.
  } while (got < 0 && (errno == EINTR || (errno == ECONNRESET && !std::exchange(reset, true))));
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return make_error(ErrorCode::kWouldBlock, "no frame waits on the attach socket");
    }
    return peer_left(errno) ? gone() : errno_error(ErrorCode::kInternal, "attach receive");
  }
  frame.fds = take_fds(message);
  if (got == 0 && frame.fds.empty()) return gone();
  const std::size_t fds_allowed = closer_ ? 0 : kMaxFdsPerFrame;
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || frame.fds.size() > fds_allowed) {
    for (UniqueFd& fd : frame.fds) {
      if (closer_) closer_->close(std::move(fd));
    }
    return make_error(ErrorCode::kInvalidArgument, "attach frame over 1 KiB or with more than " +
                                                       std::to_string(fds_allowed) +
                                                       " file descriptors");
  }
  frame.size = static_cast<std::size_t>(got);
  return frame;
}

Result<AttachFrame> AttachConnection::receive(Nanoseconds timeout) {
  return retry_until(fd(), POLLIN, timeout, [&] { return receive(); });
}

Result<AttachConnection> connect_attach(const std::string& path, Nanoseconds timeout) {
  KVD_ASSIGN_OR_RETURN(const sockaddr_un address, unix_address(path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return errno_error(ErrorCode::kUnavailable, "socket for " + path);
  // A blocking connect waits for room in the backlog, for SO_SNDTIMEO at most.
  const auto left = std::max<std::int64_t>(timeout.count(), 1000);
  const timeval limit{left / 1'000'000'000, (left % 1'000'000'000) / 1000};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return AttachConnection(std::move(socket));
  }
  if (errno == EAGAIN || errno == EINTR) {
    return make_error(ErrorCode::kDeadlineExceeded, "kvd at " + path + " does not accept in time");
  }
  if (errno == EACCES || errno == EPERM) {
    return make_error(ErrorCode::kPermissionDenied,
                      "no access to " + path + "; the user must be in the socket's group");
  }
  return errno_error(ErrorCode::kUnavailable,
                     "no kvd listens at " + path + "; start it or set KVD_ENDPOINT");
}

Result<AttachListener> AttachListener::create(const std::string& path) {
  KVD_ASSIGN_OR_RETURN(UnixListener listener, UnixListener::create(path, SOCK_SEQPACKET));
  return AttachListener(std::move(listener));
}

Result<std::optional<AttachConnection>> AttachListener::accept() {
  KVD_ASSIGN_OR_RETURN(auto socket, listener_.accept());
  if (!socket) return std::optional<AttachConnection>();
  return std::optional(AttachConnection(std::move(*socket), listener_.closer()));
}

}  // namespace kvd::transport
