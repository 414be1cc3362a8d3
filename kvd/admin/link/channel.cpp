#include "kvd/admin/link/channel.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "ipc/vocabulary/clock.hpp"

namespace kvd::admin::link {
namespace {

Error gone() { return make_error(ErrorCode::kPeerGone, "the other end of the link is closed"); }

bool would_block() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

Result<std::pair<UniqueFd, UniqueFd>> Channel::pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return make_error(ErrorCode::kUnavailable, "no file descriptor left: raise RLIMIT_NOFILE");
  }
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS, from Linux 6.16 on
  const int off = 0;
  for (const int end : ends) ::setsockopt(end, SOL_SOCKET, kPassRights, &off, sizeof off);
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

Status Channel::wait(short events, TimePoint deadline) const {
  for (;;) {
    const auto left = deadline - SteadyClock().now();
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    if (ms <= 0) return make_error(ErrorCode::kDeadlineExceeded, "the link is silent");
    std::array<pollfd, 2> entries = {{{socket_.get(), events, 0}, {stop_, POLLIN, 0}}};
    const int ready = ::poll(entries.data(), entries.size(),
                             static_cast<int>(std::min<std::int64_t>(ms, 1 << 30)));
    if (entries[1].revents != 0) return make_error(ErrorCode::kDeadlineExceeded, "kvd ends");
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return gone();
  }
}

Status Channel::read(std::span<std::byte> into, TimePoint deadline) {
  while (!into.empty()) {
    const ssize_t count = ::recv(socket_.get(), into.data(), into.size(), 0);
    if (count > 0) {
      into = into.subspan(static_cast<std::size_t>(count));
    } else if (count == 0 || !would_block()) {
      return gone();
    } else {
      KVD_TRY(wait(POLLIN, deadline));
    }
  }
  return {};
}

Status Channel::write(std::span<const std::byte> bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (!would_block()) {
      return gone();
    } else {
      KVD_TRY(wait(POLLOUT, deadline));
    }
  }
  return {};
}

Status Channel::send(Type type, std::span<const std::byte> body, Nanoseconds timeout) {
  const TimePoint deadline = SteadyClock().now() + timeout;
  Header header;
  header.type = static_cast<std::uint16_t>(type);
  header.length = body.size();
  KVD_TRY(write(std::as_bytes(std::span(&header, 1)), deadline));
  return write(body, deadline);
}

Result<Message> Channel::receive(Bytes most, Nanoseconds timeout) {
  const TimePoint deadline = SteadyClock().now() + timeout;
  Header header;
  KVD_TRY(read(std::as_writable_bytes(std::span(&header, 1)), deadline));
  if (header.magic != kMagic || header.version != kVersion || header.length > most.size()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "what came over the link is no message: kvd and kvd-admin have to come from "
                      "one build");
  }
  Message message{static_cast<Type>(header.type), ByteVector(header.length)};
  KVD_TRY(read(message.body, deadline));
  return message;
}

}  // namespace kvd::admin::link
