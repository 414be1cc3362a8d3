#include "ipc/http/front.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

namespace kvd::http {
namespace {

constexpr std::uint64_t kListener = 0;
constexpr std::uint64_t kBell = 1;
constexpr int kBacklog = 512;
constexpr int kTick = 100;  // ms between looks at deadlines
constexpr std::size_t kPiece = std::size_t{64} << 10;

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

Result<Address> loopback(const std::string& text, std::uint16_t port) {
  Address out;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (port == 0) return make_error(ErrorCode::kInvalidArgument, "name a port other than 0");
  if (text == "::1") {
    v6->sin6_family = AF_INET6, v6->sin6_port = htons(port), v6->sin6_addr = in6addr_loopback;
    out.size = sizeof *v6;
    return out;
  }
  in_addr parsed{};
  if (inet_pton(AF_INET, text.c_str(), &parsed) != 1 || (ntohl(parsed.s_addr) >> 24) != 127) {
    return make_error(ErrorCode::kInvalidArgument,
                      "\"" + text +
                          "\" is no loopback address: use 127.0.0.1 or ::1, and a proxy with TLS "
                          "in front to reach it from elsewhere");
  }
  v4->sin_family = AF_INET, v4->sin_port = htons(port), v4->sin_addr = parsed;
  out.size = sizeof *v4;
  return out;
}

Result<UniqueFd> listen_at(const Address& address) {
  UniqueFd socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) !=
          0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return make_error(ErrorCode::kUnavailable, std::strerror(errno));
  }
  return socket;
}

void add(int epoll, std::uint64_t id, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

bool would_block() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

std::string Front::authority(const std::string& address, std::uint16_t port) {
  const bool v6 = address.find(':') != std::string::npos;
  return (v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

Status Front::check(const std::string& address, std::uint16_t port) {
  const auto parsed = loopback(address, port);
  return parsed.ok() ? Status() : Status(parsed.error());
}

Result<std::unique_ptr<Front>> Front::start(Options options, Handler handler) {
  KVD_ASSIGN_OR_RETURN(const Address address, loopback(options.address, options.port));
  KVD_ASSIGN_OR_RETURN(UniqueFd listener, listen_at(address));
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !bell.valid()) {
    return make_error(ErrorCode::kUnavailable, "no file descriptor left: raise RLIMIT_NOFILE");
  }
  return std::unique_ptr<Front>(new Front(std::move(options), std::move(handler),
                                          std::move(listener), std::move(epoll),
                                          std::make_shared<Outbox>(std::move(bell))));
}

Front::Front(Options options, Handler handler, UniqueFd listener, UniqueFd epoll,
             std::shared_ptr<Outbox> outbox)
    : options_(std::move(options)),
      handler_(std::move(handler)),
      clock_(options_.clock != nullptr ? *options_.clock : steady_),
      listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      outbox_(std::move(outbox)) {
  add(epoll_.get(), kListener, listener_.get());
  add(epoll_.get(), kBell, outbox_->bell());
  thread_ = std::thread([this] { run(); });
}

Front::~Front() {
  stopping_ = true;
  outbox_->ring();
  thread_.join();
}

void Front::run() {
  while (!stopping_) {
    std::array<epoll_event, 64> events;
    const bool idle = connections_.empty() && listening_;
    const int ready = ::epoll_wait(epoll_.get(), events.data(), events.size(), idle ? -1 : kTick);
    for (int i = 0; i < ready; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      serve(event.data.u64, event.events);
    }
    close_late();
  }
  while (!connections_.empty()) close(connections_.begin());
}

void Front::serve(std::uint64_t id, std::uint32_t events) {
  if (id == kListener) return accept();
  if (id == kBell) return take_outbox();
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  switch (it->second.phase) {
    case Phase::kReading:
      return read(it);
    case Phase::kAnswering:
      return (events & (EPOLLERR | EPOLLHUP)) != 0 ? close(it) : flush(it);
    case Phase::kLingering:
      return drain(it);
  }
}

void Front::accept() {
  for (int turn = 0; turn < kBacklog; ++turn) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      // Out of descriptors the listener would stay readable, so it is looked at again later.
      if (!would_block() && errno != ECONNABORTED) listen(false);
      return;
    }
    make_room();
    if (connections_.size() >= options_.limits.connections) continue;  // all have their request in
    const std::uint64_t id = ++last_id_;
    add(epoll_.get(), id, socket.get());
    const auto [it, added] = connections_.emplace(
        id, Connection{std::move(socket), RequestReader(options_.limits.request),
                       clock_.now() + options_.limits.arrival});
    // A client that has sent already is served now, before anybody can push it out.
    if (added) read(it);
  }
}

void Front::listen(bool on) {
  listening_ = on;
  epoll_event event{};
  event.events = on ? std::uint32_t{EPOLLIN} : 0u;
  event.data.u64 = kListener;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
}

std::size_t Front::readers() const {
  return static_cast<std::size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [](const auto& entry) { return entry.second.phase != Phase::kAnswering; }));
}

void Front::make_room() {
  const bool full = connections_.size() >= options_.limits.connections;
  if (!full && readers() < options_.limits.readers) return;
  const auto oldest = std::find_if(connections_.begin(), connections_.end(), [](const auto& entry) {
    return entry.second.phase != Phase::kAnswering;
  });
  if (oldest != connections_.end()) close(oldest);
}

void Front::read(Connections::iterator it) {
  Connection& connection = it->second;
  std::array<char, kPiece> bytes;
  const ssize_t count = ::recv(connection.socket.get(), bytes.data(), bytes.size(), 0);
  if (count < 0 && would_block()) return;
  if (count <= 0) return close(it);
  try {
    const auto state = connection.reader.feed({bytes.data(), static_cast<std::size_t>(count)});
    if (state == RequestReader::State::kComplete) return hand_on(it);
    if (state == RequestReader::State::kRefused) {
      const Refusal refusal = connection.reader.refusal();
      return refuse(it, refusal.status, refusal.message);
    }
    if (connection.reader.waits_for_leave() && !std::exchange(connection.may_send, true)) {
      constexpr std::string_view kLeave = "HTTP/1.1 100 Continue\r\n\r\n";
      (void)::send(connection.socket.get(), kLeave.data(), kLeave.size(), MSG_NOSIGNAL);
    }
  } catch (const std::exception&) {  // out of memory
    close(it);
  }
}

void Front::hand_on(Connections::iterator it) {
  it->second.outcome = std::make_shared<Outcome>();
  const bool head = it->second.reader.wants_head_only();
  Request request = it->second.reader.take();
  if (head) request.method = "GET";
  const auto exchange =
      std::make_shared<Exchange>(outbox_, it->second.outcome, it->first, Manner{head, request.old});
  it->second.phase = Phase::kAnswering;
  watch(it, 0);
  // A load balancer asks this by default, to see whether the port answers.
  if (request.method == "OPTIONS" && (request.target == "*" || request.target == "/")) {
    return exchange->answer(200, "");
  }
  try {
    handler_(std::move(request), exchange);
  } catch (const std::exception& error) {
    exchange->answer(500, options_.refusal != nullptr ? options_.refusal(500, error.what()) : "");
  }
}

void Front::refuse(Connections::iterator it, int status, const std::string& message) {
  const std::string body = options_.refusal != nullptr ? options_.refusal(status, message) : "";
  it->second.phase = Phase::kAnswering;
  it->second.deadline = clock_.now() + options_.limits.stall;
  it->second.out = whole_answer(status, body);
  if (it->second.reader.wants_head_only()) it->second.out = head_of_answer(it->second.out);
  it->second.last = true;
  flush(it);
}

void Front::take_outbox() {
  for (Outbox::Piece& piece : outbox_->take()) {
    const auto it = connections_.find(piece.connection);
    if (it == connections_.end() || it->second.phase != Phase::kAnswering) continue;
    Connection& connection = it->second;
    const std::size_t waiting = connection.out.size() - connection.sent;
    if (waiting > options_.limits.backlog.size()) {
      close(it);
      continue;
    }
    if (waiting == 0) {
      connection.out.clear(), connection.sent = 0;
      connection.deadline = clock_.now() + options_.limits.stall;
    }
    connection.out += piece.bytes;
    connection.last = piece.last;
    flush(it);
  }
  close_largest();
}

void Front::close_largest() {
  for (;;) {
    std::size_t all = 0, most = 0;
    auto largest = connections_.end();
    for (auto it = connections_.begin(); it != connections_.end(); ++it) {
      const std::size_t waiting = it->second.out.size() - it->second.sent;
      all += waiting;
      if (waiting > most) most = waiting, largest = it;
    }
    if (all <= options_.limits.all_backlogs.size()) return;
    close(largest);
  }
}

void Front::flush(Connections::iterator it) {
  Connection& connection = it->second;
  while (connection.sent < connection.out.size()) {
    const ssize_t count = ::send(connection.socket.get(), connection.out.data() + connection.sent,
                                 connection.out.size() - connection.sent, MSG_NOSIGNAL);
    if (count < 0 && would_block()) return watch(it, EPOLLOUT);
    if (count < 0) return close(it);
    connection.sent += static_cast<std::size_t>(count);
    if (connection.outcome) connection.outcome->take_waiting(static_cast<std::size_t>(count));
    connection.deadline = clock_.now() + options_.limits.stall;
  }
  if (connection.last) return linger(it);
  watch(it, 0);
}

/// Everything is sent. What the client still sends is read and dropped for a while: closing at once
/// would take the answer away from a client that is sending.
void Front::linger(Connections::iterator it) {
  if (it->second.outcome) it->second.outcome->end(true);
  it->second.phase = Phase::kLingering;
  it->second.deadline = clock_.now() + options_.limits.arrival;
  it->second.out = {};
  ::shutdown(it->second.socket.get(), SHUT_WR);
  watch(it, EPOLLIN);
}

void Front::drain(Connections::iterator it) {
  std::array<char, kPiece> bytes;
  const ssize_t count = ::recv(it->second.socket.get(), bytes.data(), bytes.size(), 0);
  if (count == 0 || (count < 0 && !would_block())) close(it);
}

void Front::close(Connections::iterator it) {
  if (it->second.outcome) it->second.outcome->end(false);
  connections_.erase(it);
}

void Front::close_late() {
  if (!listening_) listen(true);
  const TimePoint now = clock_.now();
  for (auto it = connections_.begin(); it != connections_.end();) {
    const auto next = std::next(it);
    const bool waits_for_us = it->second.phase == Phase::kAnswering &&
                              it->second.sent == it->second.out.size() && !it->second.last;
    if (!waits_for_us && it->second.deadline <= now) {
      if (it->second.phase == Phase::kReading) {
        refuse(it, 408, "the request took too long to arrive");
      } else {
        close(it);
      }
    }
    it = next;
  }
}

void Front::watch(Connections::iterator it, std::uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = it->first;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, it->second.socket.get(), &event);
}

}  // namespace kvd::http
