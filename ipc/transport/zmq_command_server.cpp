#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "ipc/transport/command_server.hpp"
#include "ipc/transport/unix_socket.hpp"
#include "ipc/transport/zmq_connection.hpp"

namespace kvd::transport {
namespace {

/// In the epoll; connections are numbered from 1.
constexpr std::uint64_t kListener = 0;
/// A quarter of the buffers is reserved for this many users.
constexpr std::int64_t kUsers = 64;

class ZmqCommandServer final : public CommandServer {
 public:
  ZmqCommandServer(ZmqServerOptions options, UnixListener listener, UniqueFd epoll)
      : options_(std::move(options)),
        endpoint_("ipc://" + options_.path),
        kept_(options_.buffers.value / 4 * 3, options_.buffers.value / 4 / kUsers),
        listener_(std::move(listener)),
        epoll_(std::move(epoll)) {}

  Status start() {
    Status status = watch(EPOLL_CTL_ADD, kListener, listener_.fd(), EPOLLIN);
    watched_ = status.ok();
    return status;
  }

  [[nodiscard]] int fd() const override { return epoll_.get(); }
  [[nodiscard]] std::uint64_t dropped() const override { return dropped_; }
  [[nodiscard]] const std::string& endpoint() const override { return endpoint_; }

  [[nodiscard]] std::optional<Incoming> receive() override {
    constexpr int kPiecesACall = 16;
    for (const std::uint64_t id : std::exchange(failed_, {})) hang_up(connections_.find(id));
    for (int i = 0; i < kPiecesACall; ++i) {
      if (turns_.empty() && !look()) return std::nullopt;
      if (turns_.empty()) continue;
      const auto it = connections_.find(turns_.front());
      turns_.pop_front();
      if (it == connections_.end()) continue;
      it->second.queued = false;
      if (it->second.kept) continue;
      if (auto command = take_turn(it)) return command;
    }
    return Incoming{};
  }

  void keep(PeerId peer) override {
    const auto it = connections_.find(peer.value);
    if (it != connections_.end()) it->second.kept = true;
  }

  std::optional<Incoming> release(PeerId peer) override {
    const auto it = connections_.find(peer.value);
    if (it == connections_.end()) return std::nullopt;
    ZmqConnection& connection = it->second;
    connection.kept = connection.muted = false;
    if (connection.has_unread()) enqueue(it);
    if (!watch_events(it).ok()) failed_.push_back(peer.value);
    return incoming(it);
  }

  Status send(PeerId peer, std::span<const std::byte> frame) override {
    const auto it = connections_.find(peer.value);
    if (it == connections_.end()) {
      return make_error(ErrorCode::kPeerGone, "the engine's command connection is gone");
    }
    Status sent = it->second.send(frame);
    if (sent.ok()) sent = watch_events(it);
    if (!sent.ok()) failed_.push_back(peer.value);  // later: a frame of it may be in use
    return sent;
  }

  void set_trusted(PeerId peer, bool trusted) override {
    const auto it = connections_.find(peer.value);
    if (it != connections_.end()) it->second.trusted = trusted;
  }

  [[nodiscard]] Result<bool> restore() override {
    KVD_ASSIGN_OR_RETURN(const bool anew, listener_.restore());
    if (!anew && watched_) return false;
    paused_ = false;
    KVD_TRY(start());
    return true;
  }

  void accept_again() override {
    if (paused_) paused_ = !watch(EPOLL_CTL_MOD, kListener, listener_.fd(), EPOLLIN).ok();
  }

 private:
  using Connections = std::map<std::uint64_t, ZmqConnection>;

  Status watch(int what, std::uint64_t id, int fd, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (::epoll_ctl(epoll_.get(), what, fd, &event) == 0) return {};
    return errno_error(ErrorCode::kUnavailable, "cannot watch the command socket");
  }

  /// Wakes us when the peer has sent, and when it has read if something waits for that. Not while
  /// the peer has more to say than we ask for: it could keep us awake, even by hanging up.
  Status watch_events(Connections::iterator it) {
    ZmqConnection& connection = it->second;
    std::uint32_t events = EPOLLIN;
    if (connection.has_unsent()) events |= EPOLLOUT;
    if (connection.muted) events = 0;
    const std::uint32_t before = std::exchange(connection.watched, events);
    if (before == events) return {};
    const int what = events == 0 ? EPOLL_CTL_DEL : before == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    return watch(what, it->first, connection.fd(), events);
  }

  [[nodiscard]] static Incoming incoming(Connections::iterator it) {
    const ZmqConnection::Owner& owner = it->second.owner();
    return {PeerId(it->first), it->second.message(), owner.uid, owner.pid};
  }

  void hang_up(Connections::iterator it) {
    if (it == connections_.end()) return;
    // Forgotten before it is closed, as that may happen later and elsewhere.
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->second.fd(), nullptr);
    connections_.erase(it);
  }

  void enqueue(Connections::iterator it) {
    if (!std::exchange(it->second.queued, true)) turns_.push_back(it->first);
  }

  /// Gives a turn to every connection that has something to say; false when none has.
  bool look() {
    epoll_event events[64];
    const int count = ::epoll_wait(epoll_.get(), events, std::size(events), 0);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t id = events[i].data.u64;
      if (id == kListener) {
        accept();
      } else if (const auto it = connections_.find(id); it != connections_.end()) {
        it->second.muted = it->second.kept;
        const bool lives = it->second.flush().ok() && watch_events(it).ok();
        lives ? enqueue(it) : hang_up(it);
      }
    }
    return count > 0;
  }

  /// A piece of work for one connection, which then queues up behind the others.
  std::optional<Incoming> take_turn(Connections::iterator it) {
    ZmqConnection& connection = it->second;
    using Work = ZmqConnection::Work;
    const Work work = connection.advance();
    const bool lives = work != Work::kBroken && work != Work::kGone && watch_events(it).ok();
    if (!lives) {
      dropped_ += work == Work::kBroken ? 1 : 0;
      hang_up(it);
      return std::nullopt;
    }
    const bool message = work == Work::kMessage;
    if (work == Work::kSome || (message && connection.has_unread())) enqueue(it);
    return message ? std::optional(incoming(it)) : std::nullopt;
  }

  void accept() {
    constexpr int kAtOnce = 64;
    for (int i = 0; i < kAtOnce; ++i) {
      auto socket = listener_.accept();
      // The listener would stay readable for a connection that cannot be taken.
      paused_ = !socket.ok() && watch(EPOLL_CTL_MOD, kListener, listener_.fd(), 0).ok();
      if (!socket.ok() || !*socket) return;
      take_in(std::move(**socket));
    }
  }

  [[nodiscard]] ZmqConnection::User user_of(uid_t uid, gid_t gid) const {
    const bool group = options_.by_group && options_.by_group(uid, gid);
    return {group, group ? gid : uid};
  }

  void take_in(UniqueFd socket) {
    const auto who = peer_credentials(socket.get());
    const auto& allowed = options_.allowed_uids;
    const bool welcome = who.ok() && (allowed.empty() || std::ranges::count(allowed, who->uid) > 0);
    if (!welcome) return;
    SilentUids silent;
    for (const auto& [id, connection] : connections_) {
      if (!connection.trusted) silent.emplace(id, connection.owner().uid);
    }
    // No deadline ends these, as an engine may wait for long before its first command.
    if (const auto greedy = who_gives_way(silent, who->uid, options_.silent)) {
      hang_up(connections_.find(oldest_of(silent, *greedy)));
    }
    const auto it =
        connections_
            .try_emplace(
                ++last_id_, std::move(socket),
                ZmqConnection::Owner{who->uid, who->pid, user_of(who->uid, who->gid)},
                ZmqConnection::Bounds{static_cast<std::size_t>(options_.queue_limit), kept_},
                listener_.closer())
            .first;
    it->second.watched = EPOLLIN;
    const bool stands =
        it->second.greet().ok() && watch(EPOLL_CTL_ADD, it->first, it->second.fd(), EPOLLIN).ok();
    if (!stands) hang_up(it);
  }

  ZmqServerOptions options_;
  std::string endpoint_;
  ZmqConnection::Kept kept_;
  UnixListener listener_;
  UniqueFd epoll_;
  Connections connections_;
  std::uint64_t last_id_ = 0;
  std::deque<std::uint64_t> turns_;    ///< may name some that have gone
  std::vector<std::uint64_t> failed_;  ///< to be closed
  std::uint64_t dropped_ = 0;
  bool paused_ = false;
  bool watched_ = false;  ///< the listener, by the epoll
};

}  // namespace

Result<std::unique_ptr<CommandServer>> zmq_command_server(const ZmqServerOptions& options) {
  KVD_ASSIGN_OR_RETURN(UnixListener listener, UnixListener::create(options.path, SOCK_STREAM));
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return errno_error(ErrorCode::kUnavailable, "epoll of the command socket");
  auto server = std::make_unique<ZmqCommandServer>(options, std::move(listener), std::move(epoll));
  KVD_TRY(server->start());
  return std::unique_ptr<CommandServer>(std::move(server));
}

}  // namespace kvd::transport
