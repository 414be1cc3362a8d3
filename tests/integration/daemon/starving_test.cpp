// Engines that stop doing their part: the others go on, the daemon stays up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <atomic>
#include <random>

#include "ipc/transport/unix_socket.hpp"
#include "ipc/transport/zmq_socket.hpp"
#include "tests/support/daemon_thread.hpp"
#include "tests/support/raw_engine.hpp"

namespace kvd::test {
namespace {

constexpr wire::ModelShape kShape{4, 0, 0, 0, 1024};
constexpr std::uint64_t kWholePool = 16 << 20;

RawEngine attached(DaemonThread& daemon, const std::string& name,
                   const wire::ModelShape& shape = {}) {
  auto engine = RawEngine::attach(daemon.endpoint(), name, shape);
  KVD_CHECK(engine.ok(), engine.ok() ? "" : engine.error().message.c_str());
  return std::move(*engine);
}

wire::SubmitBody request(std::uint64_t id, std::uint64_t prompt, std::uint64_t max_new) {
  wire::SubmitBody body;
  body.request = id;
  body.prompt_tokens = prompt;
  body.max_new_tokens = max_new;
  return body;
}

/// Steps without reports until something runs; how many entries run.
std::uint32_t step_until_run(RawEngine& engine) {
  std::uint32_t run = 0;
  (void)poll_until([&] {
    engine.acknowledge_slabs();
    if (!engine.call(wire::StepCommand{}).ok()) return true;
    run = std::get<wire::StepReply>(engine.reply().body).body.run_count;
    return run > 0;
  });
  return run;
}

TEST(Starving, AnEngineThatNeverStepsIsUnresponsiveAndOthersLearnWhy) {
  DaemonThread daemon;
  RawEngine lazy = attached(daemon, "lazy", kShape);
  // 256 blocks of 16 tokens are the whole pool.
  ASSERT_TRUE(lazy.call(request(1, 4090, 6)).ok());
  ASSERT_EQ(step_until_run(lazy), 1u);
  RawEngine other = attached(daemon, "other", kShape);
  ASSERT_TRUE(other.call(request(1, 64, 64)).ok());

  daemon.clock().advance(std::chrono::seconds(6));
  ASSERT_TRUE(daemon.wait_until(
      [](const auto& status) { return !engine_named(status, "lazy")->responsive; }));
  const auto status = other.call(wire::StepCommand{});
  ASSERT_TRUE(status.ok());
  const auto& answer = std::get<wire::StepReply>(other.reply().body);
  ASSERT_EQ(answer.body.hold_count, 1u);
  const wire::HoldEntry held = answer.hold[0];
  EXPECT_TRUE(held.reason == static_cast<std::uint32_t>(wire::HoldReason::kNoMemory) ||
              held.reason == static_cast<std::uint32_t>(wire::HoldReason::kWaiting))
      << held.reason;
  EXPECT_TRUE(engine_named(daemon.status(), "other")->responsive);

  // It wakes up: the very next step makes it responsive again.
  const wire::StepReport report{1, 4090, wire::kReportFinished, 0};
  wire::StepCommand step;
  step.body.iteration_finished = 1;
  step.reports = std::span(&report, 1);
  ASSERT_TRUE(lazy.call(step).ok());
  EXPECT_TRUE(engine_named(daemon.status(), "lazy")->responsive);
  EXPECT_EQ(step_until_run(other), 1u);
}

TEST(Starving, AnEngineWithoutAHeartbeatIsUnresponsiveUntilItBeats) {
  DaemonThread daemon;
  RawEngine engine = attached(daemon, "quiet");
  engine.beat();
  ASSERT_TRUE(engine.call(wire::PingCommand{}).ok()) << "after it the beat is taken";
  daemon.clock().advance(std::chrono::seconds(6));
  ASSERT_TRUE(daemon.wait_until(
      [](const auto& status) { return !engine_named(status, "quiet")->responsive; }));
  engine.beat();
  EXPECT_TRUE(daemon.wait_until(
      [](const auto& status) { return engine_named(status, "quiet")->responsive; }));
}

TEST(Starving, ASilentEngineIsEvictedOnlyWhenAskedFor) {
  // This very process would be killed, so only the off switch can be shown here.
  DaemonThread daemon;
  RawEngine engine = attached(daemon, "quiet");
  daemon.clock().advance(std::chrono::hours(1));
  ASSERT_TRUE(daemon.wait_until(
      [](const auto& status) { return !engine_named(status, "quiet")->responsive; }));
  EXPECT_TRUE(engine.call(wire::PingCommand{}).ok());
}

/// A raw ZeroMQ end of the command socket.
transport::ZmqSocket dealer(DaemonThread& daemon, int receive_limit) {
  auto socket = transport::ZmqSocket::create(ZMQ_DEALER);
  KVD_CHECK(socket.ok() && socket->set(ZMQ_LINGER, 0).ok() &&
                socket->set(ZMQ_RCVHWM, receive_limit).ok() &&
                socket->set(ZMQ_SNDTIMEO, 5000).ok() &&
                zmq_connect(socket->get(), ("ipc://" + daemon.command_socket()).c_str()) == 0,
            "a ZeroMQ socket");
  return std::move(*socket);
}

bool send(transport::ZmqSocket& socket, std::span<const std::byte> bytes) {
  return zmq_send(socket.get(), bytes.data(), bytes.size(), 0) >= 0;
}

TEST(Starving, AClientThatNeverReadsItsRepliesIsDroppedAndNobodyElseNotices) {
  DaemonThread daemon;
  RawEngine deaf = attached(daemon, "deaf");
  RawEngine other = attached(daemon, "other");
  auto socket = dealer(daemon, 1);
  const auto dropped = [&] {
    const auto engine = engine_named(daemon.status(), "deaf");
    return !engine || engine->dying;
  };
  bool gone = false;
  for (int i = 0; i < 200'000 && !gone; ++i) {
    if (!send(socket, deaf.next_frame(wire::PingCommand{}))) break;
    if (i % 1000 == 0) {
      ASSERT_TRUE(other.call(wire::PingCommand{}).ok());
      gone = dropped();
    }
  }
  EXPECT_TRUE(poll_until(dropped));
  EXPECT_TRUE(other.call(wire::PingCommand{}).ok());
  EXPECT_EQ(deaf.call(wire::PingCommand{}).code(), ErrorCode::kStaleSession);
}

TEST(Starving, AClientThatNeverReadsItsAttachSocketIsDropped) {
  DaemonThread daemon;
  RawEngine deaf = attached(daemon, "deaf");
  RawEngine other = attached(daemon, "other");
  Status status;
  for (int i = 0; i < 20'000 && status.ok(); ++i) {
    status = deaf.call(wire::AllocateBody{1, 0, 0, 1});
    if (!status.ok()) break;
    const auto region = std::get<wire::AllocateReplyBody>(deaf.reply().body).region;
    status = deaf.call(wire::FinishCommand{{region, 2, 0}});
  }
  EXPECT_EQ(status.code(), ErrorCode::kStaleSession) << status.error().message;
  EXPECT_TRUE(other.call(wire::PingCommand{}).ok());
  EXPECT_TRUE(other.call(wire::AllocateBody{1, 0, 0, kWholePool / 2}).ok());
}

/// Frames of random bytes and sizes, some of which begin like ours.
std::vector<std::byte> garbage(std::mt19937_64& random) {
  std::vector<std::byte> bytes(random() % 300);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const std::uint32_t magic = wire::kMagic;
  if (bytes.size() >= 16 && random() % 2 == 0) std::memcpy(bytes.data(), &magic, sizeof magic);
  return bytes;
}

TEST(Starving, AFloodOfGarbageLeavesOthersTheirTurn) {
  DaemonThread daemon;
  RawEngine other = attached(daemon, "other");
  std::atomic<bool> over = false;
  std::thread flood([&] {
    std::mt19937_64 random(11);
    auto socket = dealer(daemon, 1000);
    while (!over) {
      if (!send(socket, garbage(random))) return;
    }
  });
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(other.call(wire::PingCommand{}).ok());
  // Work that does not come through the command socket gets its turn as well.
  EXPECT_TRUE(RawEngine::attach(daemon.endpoint(), "meanwhile").ok());
  EXPECT_TRUE(
      daemon.wait_until([](const auto& status) { return status.counters.stale_commands > 1000; }));
  over = true;
  flood.join();
  EXPECT_TRUE(daemon.wait_all_free());
}

/// A connection to the command socket that speaks for itself; a read waits for kPatience at most.
UniqueFd plain_connection(DaemonThread& daemon) {
  const auto address = transport::unix_address(daemon.command_socket());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{kPatience.count(), 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  KVD_CHECK(address.ok() && ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address),
                                      sizeof(sockaddr_un)) == 0,
            "a connection to the command socket");
  return socket;
}

/// What a DEALER of ZMTP 3.1 says before its first message.
std::string dealer_opening() {
  using namespace std::string_literals;
  const std::string greeting = "\xff\0\0\0\0\0\0\0\1\x7f\3\1NULL"s;
  const std::string ready = "\5READY\x0bSocket-Type\0\0\0\6DEALER\x08Identity\0\0\0\0"s;
  return greeting + std::string(64 - greeting.size(), '\0') + '\4' +
         static_cast<char>(ready.size()) + ready;
}

bool send(const UniqueFd& socket, const std::string& bytes) {
  return ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

// This does not use libzmq 4.3.4: it ends the process if the socket is closed just when the peer
// hangs up in the middle of a message.
TEST(Starving, AFloodOfMessagesInManyPartsLeavesOthersTheirTurn) {
  DaemonThread daemon;
  RawEngine other = attached(daemon, "other");
  std::atomic<bool> over = false;
  std::thread flood([&] {
    const std::string part = "\1\x08" + std::string(8, 'x');  // and more to follow
    while (!over) {
      const UniqueFd socket = plain_connection(daemon);
      bool heard = send(socket, dealer_opening());
      while (heard && !over) heard = send(socket, part);
    }
  });
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(other.call(wire::PingCommand{}).ok());
  EXPECT_TRUE(RawEngine::attach(daemon.endpoint(), "meanwhile").ok());
  EXPECT_TRUE(daemon.wait_until([](const auto& status) {
    return status.counters.stale_commands > 2;
  })) << "each costs its sender the connection, and counts as refused";
  over = true;
  flood.join();
  EXPECT_TRUE(daemon.wait_all_free());
}

TEST(Starving, AFloodOfAttachFramesLeavesOthersTheirTurn) {
  DaemonThread daemon;
  RawEngine loud = attached(daemon, "loud", kShape);
  RawEngine other = attached(daemon, "other");
  std::atomic<bool> over = false;
  std::atomic<std::uint64_t> sent = 0;
  std::thread flood([&] {
    wire::SlabMapped mapped;  // it was never given this slab
    while (!over && loud.connection().send(wire::seal(mapped), {}, kPatience).ok()) ++sent;
  });
  while (sent < 10'000) {
    const Status ping = other.call(wire::PingCommand{});
    EXPECT_TRUE(ping.ok()) << ping.error().to_string() << sent;
    if (!ping.ok()) break;
  }
  EXPECT_TRUE(RawEngine::attach(daemon.endpoint(), "meanwhile").ok());
  over = true;
  flood.join();
  EXPECT_TRUE(loud.call(wire::PingCommand{}).ok()) << "loud, but it broke no rule";
}

TEST(Starving, AnOversizedCommandCostsItsSenderTheConnectionOnly) {
  DaemonThread daemon;
  RawEngine other = attached(daemon, "other");
  {
    auto socket = dealer(daemon, 1000);
    ASSERT_TRUE(send(socket, std::vector<std::byte>(wire::kMaxCommandFrame + 1)));
    ASSERT_TRUE(send(socket, std::vector<std::byte>(64 << 20)));
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(other.call(wire::PingCommand{}).ok());
  }
  EXPECT_TRUE(
      daemon.wait_until([](const auto& status) { return status.counters.stale_commands > 0; }));
}

/// Whether the other end hangs up before kPatience is over, whatever it sends until then.
bool is_hung_up_on(const UniqueFd& socket) {
  char bytes[256];
  for (;;) {
    const ssize_t got = ::recv(socket.get(), bytes, sizeof bytes, 0);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
    if (got < 0 && errno != EINTR) return false;
  }
}

// A peer of ZMTP 1 or 2 whose first message met a socket being closed made libzmq abort the
// process.
TEST(Starving, PeersOfZmtp1And2AreHungUpOnAndTheDaemonServesOn) {
  DaemonThread daemon;
  RawEngine other = attached(daemon, "other");
  using Bytes8 = std::vector<std::uint8_t>;
  const Bytes8 zmtp1{1, 0, 4, 0, 'a', 'b', 'c', 9, 0, 1, 2, 3, 4, 5, 6, 7};
  const Bytes8 zmtp2{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1, 5, 0, 0, 0, 3, 'a', 'b', 'c'};
  for (const Bytes8& greeting : {zmtp1, zmtp2}) {
    for (int i = 0; i < 10; ++i) {
      const UniqueFd socket = plain_connection(daemon);
      ASSERT_EQ(::send(socket.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(greeting.size()));
      EXPECT_TRUE(is_hung_up_on(socket)) << "first byte " << int{greeting[0]};
    }
  }
  EXPECT_TRUE(other.call(wire::PingCommand{}).ok());
}

TEST(Starving, BytesThatAreNoZeroMqAreNoHarm) {
  DaemonThread daemon;
  RawEngine other = attached(daemon, "other");
  std::mt19937_64 random(12);
  for (int i = 0; i < 20; ++i) {
    const UniqueFd socket = plain_connection(daemon);
    for (int piece = 0; piece < 50; ++piece) {
      const auto bytes = garbage(random);
      if (::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) break;
    }
  }
  EXPECT_TRUE(other.call(wire::PingCommand{}).ok());
}

}  // namespace
}  // namespace kvd::test
