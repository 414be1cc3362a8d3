#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "ipc/transport/attach.hpp"
#include "ipc/transport/command_client.hpp"
#include "ipc/transport/command_server.hpp"
#include "ipc/transport/unix_socket.hpp"
#include "ipc/transport/zmtp.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/wire/codec.hpp"
#include "tests/support/runtime_folder.hpp"

namespace {

std::atomic<int> watches_refused = 0;  ///< the next calls that fail, for want of kernel memory

}  // namespace

extern "C" int epoll_ctl(int epoll, int what, int fd, epoll_event* event) noexcept {
  static const auto kernels =
      reinterpret_cast<decltype(&epoll_ctl)>(::dlsym(RTLD_NEXT, "epoll_ctl"));
  if (what == EPOLL_CTL_ADD && watches_refused > 0) {
    --watches_refused;
    errno = ENOMEM;
    return -1;
  }
  return kernels(epoll, what, fd, event);
}

namespace kvd::transport {
namespace {

using namespace std::chrono_literals;

constexpr Nanoseconds kPatience = 10s;

std::vector<std::byte> ping(std::uint64_t sequence) {
  wire::Command command{{}, wire::PingCommand{}};
  command.header.sequence = sequence;
  wire::FrameBuffer out;
  EXPECT_TRUE(wire::encode_command(command, out).ok());
  return {out.bytes().begin(), out.bytes().end()};
}

std::vector<std::byte> pong(std::uint64_t sequence) {
  wire::Reply reply{{}, wire::MessageType::kPing, "", {}};
  reply.header.sequence = sequence;
  wire::FrameBuffer out;
  EXPECT_TRUE(wire::encode_reply(reply, out).ok());
  return {out.bytes().begin(), out.bytes().end()};
}

std::uint64_t sequence_of(std::span<const std::byte> frame) {
  const auto header = wire::peek_command(frame);
  return header ? header->sequence : 0;
}

struct Received {
  PeerId peer;
  std::vector<std::byte> frame;
  uid_t uid;
  pid_t pid;
};

/// The server as the daemon's loop uses it: drained before each wait on its fd.
class Server {
 public:
  explicit Server(const ZmqServerOptions& options) : sut_(make(options)) {}

  std::optional<Received> next(Nanoseconds patience = kPatience) {
    const TimePoint deadline = clock_.now() + patience;
    while (clock_.now() < deadline) {
      if (const auto in = sut_->receive()) {
        if (in->frame.empty()) continue;  // refused
        return Received{in->peer, {in->frame.begin(), in->frame.end()}, in->uid, in->pid};
      }
      pollfd item{sut_->fd(), POLLIN, 0};
      poll(&item, 1, static_cast<int>((deadline - clock_.now()) / 1ms) + 1);
    }
    return std::nullopt;
  }

  CommandServer& operator*() { return *sut_; }
  CommandServer* operator->() { return sut_.get(); }

 private:
  static std::unique_ptr<CommandServer> make(const ZmqServerOptions& options) {
    auto server = zmq_command_server(options);
    EXPECT_TRUE(server.ok()) << server.error().to_string();
    return std::move(server).value();
  }
  SteadyClock clock_;
  std::unique_ptr<CommandServer> sut_;
};

std::unique_ptr<CommandClient> client_of(const std::string& endpoint) {
  auto client = zmq_command_client(endpoint);
  EXPECT_TRUE(client.ok());
  return std::move(client).value();
}

struct ZmqCommand : testing::Test {
  test::RuntimeFolder scratch;
  ZmqServerOptions options{scratch.file("c"), {}, 8};
};

/// A DEALER that keeps no rule of ours.
class RawDealer {
 public:
  explicit RawDealer(const std::string& endpoint, std::string_view id = "") {
    const int no_linger = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &no_linger, sizeof no_linger);
    if (!id.empty()) zmq_setsockopt(socket_, ZMQ_ROUTING_ID, id.data(), id.size());
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0);
  }
  ~RawDealer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  void send(std::span<const std::byte> frame, int flags = 0) {
    EXPECT_GE(zmq_send(socket_, frame.data(), frame.size(), flags), 0);
  }
  /// Whether a message came in time; its content is lost.
  [[nodiscard]] bool receive() {
    const int patience_ms = static_cast<int>(kPatience / 1ms);
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
    return zmq_recv(socket_, nullptr, 0, 0) >= 0;
  }

 private:
  void* context_ = zmq_ctx_new();
  void* socket_ = zmq_socket(context_, ZMQ_DEALER);
};

TEST_F(ZmqCommand, RoundTripWithTheKernelsWordForThePeer) {
  Server server(options);
  auto client = client_of(server->endpoint());
  std::thread daemon([&] {
    const auto in = server.next();
    ASSERT_TRUE(in.has_value());
    EXPECT_EQ(in->uid, getuid());
    EXPECT_EQ(in->pid, getpid());
    EXPECT_EQ(in->frame, ping(1));
    EXPECT_TRUE(server->send(in->peer, pong(1)).ok());
  });
  const auto reply = client->call(ping(1), 1, kPatience);
  daemon.join();
  ASSERT_TRUE(reply.ok()) << reply.error().to_string();
  EXPECT_EQ(std::vector(reply->begin(), reply->end()), pong(1));
}

TEST_F(ZmqCommand, SocketFileHasMode0660AndGoesWithTheServer) {
  const mode_t before = umask(0);
  {
    Server server(options);
    umask(before);
    struct stat file {};
    ASSERT_EQ(stat(options.path.c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 07777, 0660u);
  }
  EXPECT_FALSE(std::filesystem::exists(options.path));
}

TEST_F(ZmqCommand, LivingDaemonKeepsItsSocket) {
  Server server(options);
  const auto second = zmq_command_server(options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  RawDealer(server->endpoint()).send(ping(3));
  auto client = client_of(server->endpoint());
  auto call =
      std::async(std::launch::async, [&] { return client->call(ping(4), 4, kPatience).ok(); });
  std::optional<Received> in = server.next();
  while (in && sequence_of(in->frame) != 4) in = server.next();
  ASSERT_TRUE(in.has_value());
  EXPECT_TRUE(server->send(in->peer, pong(4)).ok());
  EXPECT_TRUE(call.get());
}

TEST_F(ZmqCommand, StaleSocketIsReplaced) {
  {
    const pid_t child = fork();
    if (child == 0) {
      const auto server = zmq_command_server(options);
      _exit(server.ok() ? 0 : 1);  // without a destructor, as after SIGKILL
    }
    int status = -1;
    waitpid(child, &status, 0);
    ASSERT_EQ(status, 0);
  }
  ASSERT_TRUE(std::filesystem::exists(options.path));
  EXPECT_TRUE(zmq_command_server(options).ok());
}

TEST_F(ZmqCommand, AFileThatAnotherPutThereIsLeftAlone) {
  {
    Server server(options);
    std::filesystem::remove(options.path);
    std::ofstream(options.path) << "precious";
  }
  EXPECT_TRUE(std::filesystem::is_regular_file(options.path));
}

TEST_F(ZmqCommand, LateReplyIsDropped) {
  Server server(options);
  auto client = client_of(server->endpoint());
  const auto answer = [&](std::uint64_t sequence) {
    const auto in = server.next();
    ASSERT_TRUE(in.has_value());
    EXPECT_TRUE(server->send(in->peer, pong(sequence)).ok());
  };
  std::thread connecting([&] { answer(1); });
  EXPECT_TRUE(client->call(ping(1), 1, kPatience).ok());
  connecting.join();
  EXPECT_EQ(client->call(ping(2), 2, 50ms).error().code, ErrorCode::kDeadlineExceeded);
  std::thread daemon([&] {
    answer(2);
    answer(3);
  });
  const auto reply = client->call(ping(3), 3, kPatience);
  daemon.join();
  ASSERT_TRUE(reply.ok()) << reply.error().to_string();
  EXPECT_EQ(wire::peek_reply_sequence(*reply), 3u);
}

TEST_F(ZmqCommand, PostedCommandsAreTakenInTheirOrderAndHeardOrAwaited) {
  Server server(options);
  auto client = client_of(server->endpoint());
  const auto answer = [&](std::uint64_t sequence) {
    const auto in = server.next();
    ASSERT_TRUE(in.has_value());
    EXPECT_EQ(sequence_of(in->frame), sequence);
    EXPECT_TRUE(server->send(in->peer, pong(sequence)).ok());
  };
  std::thread connecting([&] { answer(1); });
  ASSERT_TRUE(client->call(ping(1), 1, kPatience).ok());
  connecting.join();
  std::vector<std::uint64_t> heard;
  client->listen([&](std::span<const std::byte> reply) {
    heard.push_back(wire::peek_reply_sequence(reply).value_or(0));
  });
  for (std::uint64_t i = 2; i <= 4; ++i) ASSERT_TRUE(client->post(ping(i)).ok());
  std::thread daemon([&] {
    for (std::uint64_t i = 2; i <= 5; ++i) answer(i);
  });
  const auto third = client->await(3, kPatience);
  ASSERT_TRUE(third.ok()) << third.error().to_string();
  EXPECT_EQ(wire::peek_reply_sequence(*third), 3u);
  EXPECT_EQ(heard, std::vector<std::uint64_t>{2});
  ASSERT_TRUE(client->call(ping(5), 5, kPatience).ok());
  daemon.join();
  EXPECT_EQ(heard, (std::vector<std::uint64_t>{2, 4}));
}

TEST_F(ZmqCommand, WithoutADaemonTheCallFailsByItsDeadline) {
  auto client = client_of("ipc://" + scratch.file("nobody"));
  EXPECT_EQ(client->call(ping(1), 1, 20ms).error().code, ErrorCode::kUnavailable);
}

TEST_F(ZmqCommand, HangUpOfTheAttachSocketEndsTheCall) {
  Server server(options);
  auto listener = AttachListener::create(scratch.file("a"));
  auto engine = connect_attach(scratch.file("a"), kPatience);
  ASSERT_TRUE(engine.ok());
  auto daemon = listener->accept();
  auto client = client_of(server->endpoint());
  std::thread killer([&] {
    EXPECT_TRUE(server.next().has_value());  // the command has arrived, and its reply never comes
    { const AttachConnection gone = std::move(**daemon); }
  });
  const auto start = SteadyClock().now();
  const auto reply = client->call(ping(1), 1, 60s, engine->fd());
  killer.join();
  EXPECT_EQ(reply.error().code, ErrorCode::kUnavailable);
  EXPECT_LT(SteadyClock().now() - start, 30s);
}

TEST_F(ZmqCommand, FramesWaitingOnTheAttachSocketDoNotDisturb) {
  Server server(options);
  auto listener = AttachListener::create(scratch.file("a"));
  auto engine = connect_attach(scratch.file("a"), kPatience);
  auto daemon = listener->accept();
  ASSERT_TRUE((*daemon)->send(std::as_bytes(std::span("slab"))).ok());
  auto client = client_of(server->endpoint());
  std::thread answer([&] {
    const auto in = server.next();
    ASSERT_TRUE(in.has_value());
    EXPECT_TRUE(server->send(in->peer, pong(1)).ok());
  });
  EXPECT_TRUE(client->call(ping(1), 1, kPatience, engine->fd()).ok());
  answer.join();
}

TEST_F(ZmqCommand, AnEngineThatReadsEveryReplyIsNeverTooSlow) {
  options.queue_limit = 8;
  Server server(options);
  RawDealer engine(server->endpoint());
  // Commands wait all the time, so that libzmq never finds its queue empty, which is when it would
  // notice by itself what the engine has read.
  for (int i = 1; i <= 400; ++i) engine.send(ping(static_cast<std::uint64_t>(i)));
  for (int i = 1; i <= 400; ++i) {
    const auto in = server.next();
    ASSERT_TRUE(in.has_value());
    const Status sent = server->send(in->peer, pong(sequence_of(in->frame)));
    ASSERT_TRUE(sent.ok()) << "reply " << i << ": " << sent.error().to_string();
    ASSERT_TRUE(engine.receive());
  }
}

TEST_F(ZmqCommand, WhileACommandIsKeptTheNextOfItsConnectionWaits) {
  Server server(options);
  RawDealer one(server->endpoint());
  RawDealer other(server->endpoint());
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) one.send(ping(sequence));
  const auto first = server.next();
  ASSERT_TRUE(first.has_value());
  server->keep(first->peer);
  other.send(ping(7));
  EXPECT_EQ(sequence_of(server.next()->frame), 7u) << "others are read";
  EXPECT_FALSE(server.next(50ms).has_value());
  const auto kept = server->release(first->peer);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(sequence_of(kept->frame), 1u);
  EXPECT_EQ(sequence_of(server.next()->frame), 2u);
  EXPECT_EQ(sequence_of(server.next()->frame), 3u);
}

// One command of each connection stays in the server. With enough connections a user could make it
// keep everything.
TEST_F(ZmqCommand, AUsersFramesAreBoundedOverAllItsConnections) {
  options.buffers = kMiB * 2;
  Server server(options);
  std::vector<std::byte> frame = ping(1);
  frame.resize(wire::kMaxCommandFrame);
  std::vector<std::unique_ptr<RawDealer>> engines;
  std::size_t kept = 0;
  while (server->dropped() == 0) {
    ASSERT_LT(engines.size(), 16u) << "nobody adds them up";
    engines.push_back(std::make_unique<RawDealer>(server->endpoint()));
    engines.back()->send(frame);
    const auto in = server.next(1s);
    if (!in) continue;
    server->keep(in->peer);
    ++kept;
  }
  EXPECT_GE(kept, 2u);
  EXPECT_LE(kept, 4u) << "half of what is shared";
}

/// The process runs with another group meanwhile, as a process in several groups may.
class OtherGroup {
 public:
  explicit OtherGroup(gid_t gid) { changed = ::setegid(gid) == 0; }
  ~OtherGroup() { (void)!::setegid(own_); }
  OtherGroup(const OtherGroup&) = delete;
  OtherGroup& operator=(const OtherGroup&) = delete;
  bool changed = false;

 private:
  const gid_t own_ = ::getegid();
};

TEST_F(ZmqCommand, AUserHasOneShareOfBuffersInWhateverGroupsItIs) {
  options.buffers = kMiB * 8;
  Server server(options);
  std::vector<std::byte> frame = ping(1);
  frame.resize(wire::kMaxCommandFrame);
  std::vector<std::unique_ptr<RawDealer>> engines;
  while (server->dropped() == 0) {
    ASSERT_LT(engines.size(), 14u) << "each group has a share";
    const OtherGroup group(static_cast<gid_t>(40'000 + engines.size()));
    if (!group.changed) GTEST_SKIP() << "only root may take any group";
    engines.push_back(std::make_unique<RawDealer>(server->endpoint()));
    engines.back()->send(frame);
    if (const auto in = server.next(1s)) server->keep(in->peer);
  }
}

TEST_F(ZmqCommand, ListensAnewAsSoonAsTheKernelCanWatchOnceMore) {
  Server server(options);
  std::filesystem::remove(options.path);
  watches_refused = 1;
  EXPECT_FALSE(server->restore().ok());
  EXPECT_TRUE(*server->restore());
  EXPECT_FALSE(*server->restore());
  RawDealer engine(server->endpoint());
  engine.send(ping(1));
  EXPECT_TRUE(server.next().has_value());
}

TEST_F(ZmqCommand, ForeignUidIsNotHeard) {
  options.allowed_uids = {getuid() + 1};
  Server server(options);
  auto client = client_of(server->endpoint());
  auto call =
      std::async(std::launch::async, [&] { return client->call(ping(1), 1, 200ms).error().code; });
  EXPECT_FALSE(server.next(300ms).has_value());
  EXPECT_NE(call.get(), ErrorCode::kOk);
}

TEST_F(ZmqCommand, AllowedUidIsHeard) {
  options.allowed_uids = {getuid() + 1, getuid()};
  Server server(options);
  RawDealer engine(server->endpoint());
  engine.send(ping(1));
  EXPECT_TRUE(server.next().has_value());
}

TEST_F(ZmqCommand, ANameOfTheClientsOwnChoosingMeansNothing) {
  Server server(options);
  RawDealer one(server->endpoint(), "I am root");
  RawDealer two(server->endpoint(), "I am root");
  one.send(ping(1));
  two.send(ping(2));
  const auto first = server.next();
  const auto second = server.next();
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->peer, second->peer);
}

TEST_F(ZmqCommand, AMessageOfSeveralPartsEndsItsConnection) {
  Server server(options);
  RawDealer parts(server->endpoint());
  parts.send(ping(2), ZMQ_SNDMORE);
  parts.send(ping(3));
  while (server->dropped() < 1 && !server.next(10ms)) continue;
  EXPECT_EQ(server->dropped(), 1u);
  parts.send(ping(4));  // libzmq connects anew
  const auto in = server.next();
  ASSERT_TRUE(in.has_value());
  EXPECT_EQ(sequence_of(in->frame), 4u);
}

/// A connection without libzmq: after the handshake any bytes can follow.
class RawConnection {
 public:
  explicit RawConnection(const std::string& path) : socket_(socket_of(path)) {}

  void shake_hands() {
    send(ZmtpPeer::greeting());
    const std::string_view ready("\4\x1c\5READY\x0bSocket-Type\0\0\0\6DEALER", 30);
    send(std::as_bytes(std::span(ready)));
  }
  void send(std::span<const std::byte> bytes) {
    EXPECT_EQ(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void send_frame(std::span<const std::byte> frame) {
    std::array<std::byte, ZmtpPeer::kMaxHead> head{};
    send(std::span(head).first(ZmtpPeer::head_of(frame.size(), head)));
    send(frame);
  }
  /// Whether the server hung up, seen by now.
  [[nodiscard]] bool ended() const {
    pollfd item{socket_.get(), POLLRDHUP, 0};
    return ::poll(&item, 1, 0) == 1;
  }
  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  static UniqueFd socket_of(const std::string& path) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = unix_address(path);
    EXPECT_EQ(
        ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address), 0);
    return socket;
  }
  UniqueFd socket_;
};

TEST_F(ZmqCommand, PartsWithoutEndAreNotCollected) {
  Server server(options);
  RawConnection hostile(options.path);
  hostile.shake_hands();
  std::vector<std::byte> part(9 + wire::kMaxCommandFrame);
  part[0] = std::byte{3};  // more, long
  part[6] = std::byte{4};  // 256 KiB
  ssize_t sent = 0;
  for (int i = 0; i < 10'000 && sent >= 0; ++i) {
    sent = ::send(hostile.fd(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    while (server->receive()) continue;
  }
  EXPECT_EQ(server->dropped(), 1u);
  EXPECT_TRUE(hostile.ended());
}

TEST_F(ZmqCommand, ConnectionsThatNeverSpeakKeepNobodyOut) {
  options.silent = {4, 8};
  Server server(options);
  RawConnection engine(options.path);
  engine.shake_hands();
  engine.send_frame(ping(1));
  const auto first = server.next();
  ASSERT_TRUE(first.has_value());
  server->set_trusted(first->peer, true);
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(std::make_unique<RawConnection>(options.path));
    while (server->receive()) continue;
  }
  const auto ended = [](const auto& connection) { return connection->ended(); };
  EXPECT_EQ(std::count_if(silent.begin(), silent.end(), ended), 96);
  EXPECT_FALSE(engine.ended()) << "it belongs to a session";
  RawConnection late(options.path);
  late.shake_hands();
  late.send_frame(ping(2));
  const auto in = server.next();
  ASSERT_TRUE(in.has_value());
  EXPECT_EQ(sequence_of(in->frame), 2u);
  engine.send_frame(ping(3));
  EXPECT_EQ(sequence_of(server.next()->frame), 3u);
  server->set_trusted(first->peer, false);
  for (int i = 0; i < 4; ++i) {
    silent.push_back(std::make_unique<RawConnection>(options.path));
    while (server->receive()) continue;
  }
  EXPECT_TRUE(engine.ended()) << "as any other";
}

TEST_F(ZmqCommand, HalfAFrameIsWaitedForWithoutWork) {
  Server server(options);
  RawConnection slow(options.path);
  slow.shake_hands();
  const auto frame = ping(1);
  slow.send(std::vector{std::byte{0}, static_cast<std::byte>(frame.size())});
  slow.send(std::span(frame).first(20));
  int calls = 0;
  while (server->receive() && calls < 100) ++calls;
  EXPECT_LT(calls, 100) << "looks at the same bytes again and again";
  slow.send(std::span(frame).subspan(20));
  EXPECT_EQ(sequence_of(server.next()->frame), 1u);
}

TEST_F(ZmqCommand, AFloodFromOneLeavesTheOthersTheirTurn) {
  Server server(options);
  RawConnection flood(options.path);
  flood.shake_hands();
  std::vector<std::byte> frames;
  const auto frame = ping(1);
  for (int i = 0; i < 1000; ++i) {
    frames.push_back(std::byte{0});
    frames.push_back(static_cast<std::byte>(frame.size()));
    frames.insert(frames.end(), frame.begin(), frame.end());
  }
  flood.send(frames);
  RawConnection other(options.path);
  other.shake_hands();
  other.send_frame(ping(2));
  int before = 0;
  while (sequence_of(server.next()->frame) != 2) ++before;
  EXPECT_LT(before, 10);
}

TEST_F(ZmqCommand, OversizedFrameEndsItsConnectionOnly) {
  Server server(options);
  RawDealer hostile(server->endpoint());
  hostile.send(std::vector<std::byte>(wire::kMaxCommandFrame + 1));
  RawDealer other(server->endpoint());
  other.send(ping(7));
  const auto in = server.next();
  ASSERT_TRUE(in.has_value());
  EXPECT_EQ(sequence_of(in->frame), 7u);
  while (server->dropped() < 1 && !server.next(10ms)) continue;
  EXPECT_EQ(server->dropped(), 1u);
}

TEST_F(ZmqCommand, LargestFrameFits) {
  Server server(options);
  RawDealer engine(server->endpoint());
  engine.send(std::vector<std::byte>(wire::kMaxCommandFrame));
  const auto in = server.next();
  ASSERT_TRUE(in.has_value());
  EXPECT_EQ(in->frame.size(), wire::kMaxCommandFrame);
}

TEST_F(ZmqCommand, EngineThatDoesNotReadIsGoneAndOthersAreServed) {
  Server server(options);
  RawDealer silent(server->endpoint());
  silent.send(ping(1));
  const auto in = server.next();
  ASSERT_TRUE(in.has_value());
  const std::vector<std::byte> large(wire::kMaxCommandFrame);
  Status sent;
  for (int i = 0; i < 5000 && sent.ok(); ++i) sent = server->send(in->peer, large);
  EXPECT_EQ(sent.code(), ErrorCode::kPeerGone);
  RawDealer other(server->endpoint());
  other.send(ping(2));
  const auto next = server.next();
  ASSERT_TRUE(next.has_value());
  EXPECT_TRUE(server->send(next->peer, pong(2)).ok());
}

TEST_F(ZmqCommand, ReplyToAnUnknownPeerIsPeerGone) {
  Server server(options);
  EXPECT_EQ(server->send(PeerId(12345), pong(1)).code(), ErrorCode::kPeerGone);
}

TEST_F(ZmqCommand, ClientIsDeadInAForkedChild) {
  Server server(options);
  auto client = client_of(server->endpoint());
  const pid_t child = fork();
  if (child == 0) {
    const bool gone = client->call(ping(1), 1, 1s).error().code == ErrorCode::kPeerGone;
    client.reset();  // must neither hang nor disturb the parent
    _exit(gone ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  std::thread answer([&] {
    const auto in = server.next();
    ASSERT_TRUE(in.has_value());
    EXPECT_TRUE(server->send(in->peer, pong(1)).ok());
  });
  EXPECT_TRUE(client->call(ping(1), 1, kPatience).ok());
  answer.join();
}

TEST_F(ZmqCommand, ManyClientsGetTheirOwnReplies) {
  Server server(options);
  constexpr int kClients = 4;
  constexpr std::uint64_t kCalls = 100;
  std::vector<std::thread> engines;
  engines.reserve(kClients);
  std::atomic<int> good{0};
  for (int c = 0; c < kClients; ++c) {
    engines.emplace_back([&, c] {
      auto client = client_of(server->endpoint());
      for (std::uint64_t i = 1; i <= kCalls; ++i) {
        const std::uint64_t sequence = static_cast<std::uint64_t>(c) * 1000 + i;
        good += client->call(ping(sequence), sequence, kPatience).ok();
      }
    });
  }
  for (std::uint64_t i = 0; i < kClients * kCalls; ++i) {
    const auto in = server.next();
    ASSERT_TRUE(in.has_value()) << i;
    EXPECT_TRUE(server->send(in->peer, pong(sequence_of(in->frame))).ok());
  }
  for (auto& engine : engines) engine.join();
  EXPECT_EQ(good, kClients * static_cast<int>(kCalls));
}

TEST(ZmqCommandClient, RefusesWhatIsNoEndpoint) {
  EXPECT_EQ(zmq_command_client("tcp://127.0.0.1:1").error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvd::transport
