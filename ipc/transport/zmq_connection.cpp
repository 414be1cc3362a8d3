#include "ipc/transport/zmq_connection.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ipc/transport/unix_socket.hpp"
#include "ipc/wire/messages.hpp"

namespace kvd::transport {
namespace {

constexpr std::size_t kSmallBuffer = std::size_t{8} << 10;
constexpr std::size_t kLargestBuffer = ZmtpPeer::kMaxHead + wire::kMaxCommandFrame;

bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK; }

/// Like recv() without waiting. Descriptors that come with the bytes go to `closer`.
ssize_t receive_bytes(int socket, std::span<std::byte> into, Closer* closer) {
  ssize_t got = 0;
  if (closer == nullptr) {
    do {
      got = ::recv(socket, into.data(), into.size(), MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    return got;
  }
  iovec data{into.data(), into.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFdsSent * sizeof(int))];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  do {
    got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return got;
  for (UniqueFd& fd : take_fds(message)) closer->close(std::move(fd));
  return got;
}

}  // namespace

ZmqConnection::ZmqConnection(UniqueFd socket, Owner owner, const Bounds& bounds,
                             std::shared_ptr<Closer> closer)
    : socket_(std::move(socket)), owner_(owner), bounds_(bounds), closer_(std::move(closer)) {}

// Unread bytes end with the socket, and so do the descriptors that they brought.
ZmqConnection::~ZmqConnection() {
  counted(-counted_);
  if (closer_) closer_->close(std::move(socket_));
}

void ZmqConnection::counted(std::int64_t change) {
  counted_ += change;
  bounds_.kept.add(owner_.user, change);
}

bool ZmqConnection::count(std::size_t bytes) {
  const auto more = static_cast<std::int64_t>(bytes);
  if (!bounds_.kept.fits(owner_.user, more)) return false;
  counted(more);
  return true;
}

ZmqConnection::Work ZmqConnection::advance() {
  message_ = {};
  const auto came = std::span<const std::byte>(in_).subspan(begin_, end_ - begin_);
  answer_.clear();
  const ZmtpPeer::Piece piece = protocol_.next(came, answer_);
  if (piece.broken) return Work::kBroken;
  if (piece.taken == 0) return read_more();
  begin_ += piece.taken;
  if (!answer_.empty() && !send_raw({}, answer_).ok()) return Work::kGone;
  if (!piece.message) return Work::kSome;
  message_ = *piece.message;
  return Work::kMessage;
}

ZmqConnection::Work ZmqConnection::read_more() {
  if (!make_room()) return Work::kBroken;
  const ssize_t got = receive_bytes(fd(), std::span(in_).subspan(end_), closer_.get());
  if (got < 0) return would_wait() ? Work::kNone : Work::kGone;
  end_ += static_cast<std::size_t>(got);
  return got == 0 ? Work::kGone : Work::kSome;
}

// The buffer grows with the bytes that have come, never with what a length promises. The number of
// connections bounds the small buffers that each has.
bool ZmqConnection::make_room() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    if (in_.size() > kSmallBuffer) discount(in_.size());
    if (in_.size() != kSmallBuffer) std::vector<std::byte>(kSmallBuffer).swap(in_);
  } else if (begin_ > 0) {
    std::memmove(in_.data(), in_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  if (end_ < in_.size()) return true;
  const std::size_t larger = std::min(2 * in_.size(), kLargestBuffer);
  if (!count(larger - (in_.size() > kSmallBuffer ? in_.size() : 0))) return false;
  in_.resize(larger);
  return true;
}

Status ZmqConnection::greet() { return send_raw({}, ZmtpPeer::greeting()); }

Status ZmqConnection::send(std::span<const std::byte> message) {
  std::array<std::byte, ZmtpPeer::kMaxHead> head{};
  const std::size_t bytes = ZmtpPeer::head_of(message.size(), head);
  return send_raw(std::span(head).first(bytes), message);
}

Status ZmqConnection::send_raw(std::span<const std::byte> head, std::span<const std::byte> body) {
  std::size_t sent = 0;
  if (unsent_.empty()) {
    iovec parts[] = {{const_cast<std::byte*>(head.data()), head.size()},
                     {const_cast<std::byte*>(body.data()), body.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = std::size(parts);
    const ssize_t done = ::sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (done < 0 && !would_wait() && errno != EINTR) {
      return make_error(ErrorCode::kPeerGone, "the engine's command connection is gone");
    }
    sent = static_cast<std::size_t>(std::max<ssize_t>(done, 0));
  }
  if (sent == head.size() + body.size()) return {};
  if (unsent_.size() >= bounds_.unread_answers || !count(head.size() + body.size())) {
    return make_error(ErrorCode::kPeerGone, "the engine does not read its replies");
  }
  std::vector<std::byte>& whole = unsent_.emplace_back(head.begin(), head.end());
  whole.insert(whole.end(), body.begin(), body.end());
  if (unsent_.size() == 1) sent_of_first_ = sent;
  return {};
}

Status ZmqConnection::flush() {
  while (!unsent_.empty()) {
    const auto rest = std::span(unsent_.front()).subspan(sent_of_first_);
    const ssize_t done = ::send(fd(), rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (done < 0) {
      if (would_wait()) return {};
      if (errno == EINTR) continue;
      return make_error(ErrorCode::kPeerGone, "the engine's command connection is gone");
    }
    sent_of_first_ += static_cast<std::size_t>(done);
    if (sent_of_first_ < unsent_.front().size()) continue;
    discount(unsent_.front().size());
    unsent_.pop_front();
    sent_of_first_ = 0;
  }
  return {};
}

}  // namespace kvd::transport
