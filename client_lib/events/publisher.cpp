#include "client_lib/events/publisher.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "ipc/transport/zmq_socket.hpp"

namespace kvd::events {
namespace {

/// The same limits as vLLM's `hwm` and `buffer_steps`, and how long one incoming part may be: a
/// topic or a number. A peer that sends more is cut off.
constexpr std::int64_t kLongestQuestion = 4096;
constexpr int kMostWaiting = 100'000;
constexpr std::uint64_t kMostReplayed = 10'000;
constexpr double kASecond = 16;
constexpr std::uint64_t kEnd = ~std::uint64_t{0};

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string big_endian(std::uint64_t value) {
  std::string bytes(sizeof value, '\0');
  for (auto byte = bytes.rbegin(); byte != bytes.rend(); ++byte, value >>= 8) {
    *byte = static_cast<char>(value & 0xff);
  }
  return bytes;
}

std::uint64_t from_big_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

/// Sends a message of these parts, or nothing at all.
void send(void* socket, std::initializer_list<std::string_view> parts) {
  for (const auto* part = parts.begin(); part != parts.end(); ++part) {
    const int more = part + 1 == parts.end() ? 0 : ZMQ_SNDMORE;
    if (zmq_send(socket, part->data(), part->size(), ZMQ_DONTWAIT | more) < 0) return;
  }
}

/// A port of this machine by its number, which ZeroMQ would take modulo 65536, or a path.
bool is_of_this_machine(std::string_view endpoint) {
  if (endpoint.starts_with("ipc://")) return true;
  constexpr std::string_view kOwn[] = {"tcp://127.0.0.1:", "tcp://localhost:", "tcp://[::1]:"};
  const char* end = endpoint.data() + endpoint.size();
  return std::any_of(std::begin(kOwn), std::end(kOwn), [&](std::string_view own) {
    std::uint16_t port = 0;
    return endpoint.starts_with(own) &&
           std::from_chars(endpoint.data() + own.size(), end, port).ptr == end && port != 0;
  });
}

Result<transport::ZmqSocket> bind(int type, const std::string& endpoint) {
  if (!is_of_this_machine(endpoint)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "KV events tell the tokens of prompts, so " + endpoint +
                          " is refused: take tcp://127.0.0.1:PORT, with a PORT from 1 to 65535, or "
                          "ipc://PATH");
  }
  KVD_ASSIGN_OR_RETURN(transport::ZmqSocket socket, transport::ZmqSocket::create(type));
  KVD_TRY(socket.set(ZMQ_LINGER, 0));
  KVD_TRY(socket.set(ZMQ_SNDHWM, kMostWaiting));
  KVD_TRY(socket.set(ZMQ_IPV6, 1));
  KVD_TRY(socket.set(ZMQ_MAXMSGSIZE, kLongestQuestion));
  if (zmq_bind(socket.get(), endpoint.c_str()) == 0) return socket;
  return transport::zmq_error(ErrorCode::kUnavailable, "KV events at " + endpoint);
}

}  // namespace

struct Publisher::Sockets {
  transport::ZmqSocket events;
  std::optional<transport::ZmqSocket> replay;
};

Publisher::Publisher(Config config, std::unique_ptr<Sockets> sockets, std::uint64_t next)
    : config_(std::move(config)), sockets_(std::move(sockets)), next_(next) {}
Publisher::Publisher(Publisher&&) noexcept = default;
Publisher::~Publisher() = default;

Result<Publisher> Publisher::open(Config config) {
  // Consumers see a PUB socket; this end learns of each that subscribes.
  KVD_ASSIGN_OR_RETURN(transport::ZmqSocket events, bind(ZMQ_XPUB, config.endpoint));
  KVD_TRY(events.set(ZMQ_XPUB_VERBOSE, 1));
  auto sockets = std::make_unique<Sockets>(Sockets{std::move(events), std::nullopt});
  if (!config.replay.empty()) {
    KVD_ASSIGN_OR_RETURN(transport::ZmqSocket replay, bind(ZMQ_ROUTER, config.replay));
    sockets->replay.emplace(std::move(replay));
  }
  return Publisher(std::move(config), std::move(sockets),
                   static_cast<std::uint64_t>(now() * kASecond));
}

void Publisher::publish(const std::vector<KvEvent>& events) {
  const std::string payload = encode(now(), events);
  send(sockets_->events.get(), {config_.topic, big_endian(next_++), payload});
}

bool Publisher::serve(std::chrono::milliseconds patience,
                      const std::function<std::vector<KvEvent>()>& all) {
  const auto until = std::chrono::steady_clock::now() + patience;
  bool any_came = false;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) return any_came;
    zmq_pollitem_t said[2] = {{sockets_->events.get(), 0, ZMQ_POLLIN, 0}, {}};
    if (sockets_->replay) said[1] = {sockets_->replay->get(), 0, ZMQ_POLLIN, 0};
    if (zmq_poll(said, sockets_->replay ? 2 : 1, left.count()) <= 0) continue;
    transport::ZmqMessage subscription;
    if (subscription.receive(sockets_->events.get())) {
      const auto bytes = subscription.bytes();
      any_came = any_came || (!bytes.empty() && bytes.front() == std::byte{1});
    }
    if (sockets_->replay) answer(all);
  }
}

void Publisher::answer(const std::function<std::vector<KvEvent>()>& all) {
  std::vector<std::string> parts;
  for (bool more = true; more;) {
    transport::ZmqMessage part;
    if (!part.receive(sockets_->replay->get())) return;
    const auto bytes = part.bytes();
    parts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    more = part.more();
  }
  if (parts.size() != 3 || parts[2].size() != sizeof(std::uint64_t)) return;
  replay(parts[0], from_big_endian(parts[2]), all());
}

void Publisher::replay(const std::string& asker, std::uint64_t from,
                       const std::vector<KvEvent>& all) {
  void* socket = sockets_->replay->get();
  const auto tell = [&](std::uint64_t number, const std::string& payload) {
    send(socket, {asker, {}, config_.topic, big_endian(number), payload});
  };
  if (from < next_) {
    tell(from, encode(now(), all));
    const std::string nothing = encode(now(), {});
    const std::uint64_t kept = next_ - std::min(next_, kMostReplayed);
    for (std::uint64_t at = std::max(from + 1, kept); at < next_; ++at) tell(at, nothing);
  }
  send(socket, {asker, {}, {}, big_endian(kEnd), {}});
}

}  // namespace kvd::events
