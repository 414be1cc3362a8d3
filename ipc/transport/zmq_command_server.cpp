#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>

#include "ipc/transport/command_server.hpp"
#include "ipc/transport/unix_socket.hpp"
#include "ipc/transport/zmq_socket.hpp"
#include "ipc/wire/messages.hpp"

namespace kvd::transport {
namespace {

/// libzmq names a peer by a zero byte and a number, unless the peer chose a name: we refuse those.
constexpr std::size_t kRoutingIdBytes = 1 + sizeof(std::uint32_t);
using RoutingId = std::array<std::byte, kRoutingIdBytes>;

std::optional<PeerId> peer_of(std::span<const std::byte> routing_id) {
  if (routing_id.size() != kRoutingIdBytes || routing_id[0] != std::byte{0}) return std::nullopt;
  std::uint32_t number = 0;
  std::memcpy(&number, routing_id.data() + 1, sizeof number);
  return PeerId(number);
}

RoutingId routing_id_of(PeerId peer) {
  RoutingId id{};
  const auto number = static_cast<std::uint32_t>(peer.value);
  std::memcpy(id.data() + 1, &number, sizeof number);
  return id;
}

struct Credentials {
  uid_t uid = 0;
  pid_t pid = 0;
};

/// From libzmq's "localhost:uid:gid:pid", which it read from the kernel when the peer connected.
std::optional<Credentials> credentials_of(const char* address) {
  if (address == nullptr) return std::nullopt;
  const std::string_view text(address);
  std::array<std::uint32_t, 3> numbers{};
  std::size_t at = text.find(':');
  for (std::uint32_t& number : numbers) {
    if (at == std::string_view::npos) return std::nullopt;
    const char* first = text.data() + at + 1;
    if (std::from_chars(first, text.data() + text.size(), number).ec != std::errc()) {
      return std::nullopt;
    }
    at = text.find(':', at + 1);
  }
  return Credentials{numbers[0], static_cast<pid_t>(numbers[2])};
}

class ZmqCommandServer final : public CommandServer {
 public:
  ZmqCommandServer(ZmqSocket socket, std::string path, int fd)
      : socket_(std::move(socket)), path_(std::move(path)), endpoint_("ipc://" + path_), fd_(fd) {}
  // libzmq does not remove the file of a socket it was handed.
  ~ZmqCommandServer() override { ::unlink(path_.c_str()); }

  [[nodiscard]] int fd() const override { return fd_; }
  [[nodiscard]] std::uint64_t dropped() const override { return dropped_; }
  [[nodiscard]] const std::string& endpoint() const override { return endpoint_; }

  [[nodiscard]] std::optional<Incoming> receive() override {
    if (parts_left_) return drop_parts();
    ZmqMessage routing_id;
    if (!routing_id.receive(socket_.get())) return std::nullopt;
    const auto peer = peer_of(routing_id.bytes());
    const bool has_body = routing_id.more() && body_.receive(socket_.get());
    const bool single = has_body && !body_.more();
    const auto who = single ? credentials_of(body_.property("Peer-Address")) : std::nullopt;
    if (peer && who) return Incoming{*peer, body_.bytes(), who->uid, who->pid};
    ++dropped_;
    parts_left_ = has_body && body_.more();
    return drop_parts();
  }

  Status send(PeerId peer, std::span<const std::byte> frame) override {
    const RoutingId id = routing_id_of(peer);
    bool sent = try_send(id, frame);
    if (!sent && zmq_errno() == EAGAIN) {
      // libzmq looks at what its peers have read only now and then; asked for events, it does.
      int events = 0;
      std::size_t size = sizeof events;
      (void)zmq_getsockopt(socket_.get(), ZMQ_EVENTS, &events, &size);
      sent = try_send(id, frame);
    }
    if (!sent) {
      const bool slow = zmq_errno() == EAGAIN;
      return make_error(ErrorCode::kPeerGone, slow ? "the engine does not read its replies"
                                                   : "the engine's command connection is gone");
    }
    return {};
  }

 private:
  bool try_send(const RoutingId& id, std::span<const std::byte> frame) {
    return zmq_send(socket_.get(), id.data(), id.size(), ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0 &&
           zmq_send(socket_.get(), frame.data(), frame.size(), ZMQ_DONTWAIT) >= 0;
  }

  // A message has as many parts as its sender likes: so many a call, then others get their turn.
  Incoming drop_parts() {
    constexpr int kPartsACall = 64;
    for (int i = 0; parts_left_ && i < kPartsACall; ++i) {
      parts_left_ = body_.receive(socket_.get()) && body_.more();
    }
    return Incoming{};
  }

  ZmqSocket socket_;
  ZmqMessage body_;
  std::string path_;
  std::string endpoint_;
  int fd_;
  std::uint64_t dropped_ = 0;
  bool parts_left_ = false;  ///< of a refused message
};

Status configure(ZmqSocket& socket, const ZmqServerOptions& options, int listener) {
  KVD_TRY(socket.set(ZMQ_LINGER, 0));
  KVD_TRY(socket.set(ZMQ_ROUTER_MANDATORY, 1));
  KVD_TRY(socket.set(ZMQ_SNDHWM, options.queue_limit));
  KVD_TRY(socket.set(ZMQ_RCVHWM, options.queue_limit));
  KVD_TRY(socket.set(ZMQ_MAXMSGSIZE, std::int64_t{wire::kMaxCommandFrame}));
  // With a ZAP domain libzmq refuses the handshakes of ZMTP 1 and 2, in which it aborts the process
  // when a peer's first message meets a socket that is being closed (4.3.4,
  // process_routing_id_msg). Nobody serves ZAP here, and it is not enforced, so ZMTP 3 peers see no
  // difference.
  KVD_TRY(socket.set(ZMQ_ZAP_DOMAIN, std::string_view("kvd")));
  KVD_TRY(socket.set(ZMQ_USE_FD, listener));
  for (const uid_t uid : options.allowed_uids) KVD_TRY(socket.set(ZMQ_IPC_FILTER_UID, uid));
  return {};
}

}  // namespace

Result<std::unique_ptr<CommandServer>> zmq_command_server(const ZmqServerOptions& options) {
  // Our own listening socket, as libzmq would unlink a living daemon's and leave the umask's mode.
  KVD_ASSIGN_OR_RETURN(UniqueFd listener, listen_unix(options.path, SOCK_STREAM));
  KVD_ASSIGN_OR_RETURN(ZmqSocket socket, ZmqSocket::create(ZMQ_ROUTER));
  KVD_TRY(configure(socket, options, listener.get()));
  if (zmq_bind(socket.get(), ("ipc://" + options.path).c_str()) != 0) {
    return zmq_error(ErrorCode::kUnavailable, "ZeroMQ cannot use " + options.path);
  }
  (void)listener.release();  // libzmq closes it
  int fd = -1;
  std::size_t size = sizeof fd;
  if (zmq_getsockopt(socket.get(), ZMQ_FD, &fd, &size) != 0) {
    return zmq_error(ErrorCode::kInternal, "ZeroMQ notification fd");
  }
  return std::unique_ptr<CommandServer>(
      std::make_unique<ZmqCommandServer>(std::move(socket), options.path, fd));
}

}  // namespace kvd::transport
