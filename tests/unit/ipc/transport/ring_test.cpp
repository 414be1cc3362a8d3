#include "ipc/transport/ring.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "ipc/vocabulary/this_process.hpp"
#include "ipc/wire/codec.hpp"

namespace kvd::transport {
namespace {

using namespace std::chrono_literals;

constexpr Nanoseconds kPatience = 30s;

std::vector<std::byte> bytes_of(const wire::FrameBuffer& frame) {
  return {frame.bytes().begin(), frame.bytes().end()};
}

std::vector<std::byte> ping(std::uint64_t sequence) {
  wire::Command command{{}, wire::PingCommand{}};
  command.header.sequence = sequence;
  wire::FrameBuffer out;
  EXPECT_TRUE(wire::encode_command(command, out).ok());
  return bytes_of(out);
}

std::vector<std::byte> pong(std::uint64_t sequence) {
  wire::Reply reply{{}, wire::MessageType::kPing, "", {}};
  reply.header.sequence = sequence;
  wire::FrameBuffer out;
  EXPECT_TRUE(wire::encode_reply(reply, out).ok());
  return bytes_of(out);
}

UniqueFd copy_of(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

class RingCommand : public ::testing::TestWithParam<Nanoseconds> {
 protected:
  std::unique_ptr<CommandClient> client() {
    const auto fds = port_.peer_fds();
    return ring_command_client(copy_of(fds[0]), copy_of(fds[1]), GetParam()).value();
  }
  /// The daemon's loop: look, announce sleep, sleep on the bell.
  std::optional<std::uint64_t> next() {
    while (true) {
      const auto frame = port_.receive();
      if (!frame.ok()) return std::nullopt;
      if (*frame) return wire::peek_command(**frame)->sequence;
      if (!port_.fall_asleep()) continue;
      pollfd bell{port_.bell(), POLLIN, 0};
      eventfd_t rings = 0;
      if (::poll(&bell, 1, 30'000) != 1 || ::eventfd_read(port_.bell(), &rings) != 0) {
        return std::nullopt;
      }
    }
  }
  RingPort port_ = RingPort::create().value();
};

TEST_P(RingCommand, EveryCommandIsAnswered) {
  constexpr std::uint64_t kCommands = 2000;
  std::thread daemon([&] {
    for (std::uint64_t i = 1; i <= kCommands; ++i) {
      ASSERT_EQ(next(), i);
      ASSERT_TRUE(port_.send(pong(i)).ok());
    }
  });
  const auto engine = client();
  for (std::uint64_t i = 1; i <= kCommands; ++i) {
    const auto reply = engine->call(ping(i), i, kPatience);
    ASSERT_TRUE(reply.ok()) << reply.error().to_string();
    ASSERT_EQ(wire::peek_reply_sequence(*reply), i);
  }
  daemon.join();
}

TEST_P(RingCommand, ALateReplyIsDropped) {
  const auto engine = client();
  EXPECT_EQ(engine->call(ping(1), 1, 20ms).error().code, ErrorCode::kDeadlineExceeded);
  ASSERT_TRUE(port_.send(pong(1)).ok());
  ASSERT_TRUE(port_.send(pong(2)).ok());
  const auto reply = engine->call(ping(2), 2, kPatience);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(wire::peek_reply_sequence(*reply), 2u);
}

TEST_P(RingCommand, PostedCommandsAreTakenInTheirOrderAndHeardOrAwaited) {
  const auto engine = client();
  std::vector<std::uint64_t> heard;
  engine->listen([&](std::span<const std::byte> reply) {
    heard.push_back(wire::peek_reply_sequence(reply).value_or(0));
  });
  for (std::uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(engine->post(ping(i)).ok());
  std::thread daemon([&] {
    for (std::uint64_t i = 1; i <= 4; ++i) {
      ASSERT_EQ(next(), i);
      ASSERT_TRUE(port_.send(pong(i)).ok());
    }
  });
  const auto second = engine->await(2, kPatience);
  ASSERT_TRUE(second.ok()) << second.error().to_string();
  EXPECT_EQ(wire::peek_reply_sequence(*second), 2u);
  EXPECT_EQ(heard, std::vector<std::uint64_t>{1});
  ASSERT_TRUE(engine->call(ping(4), 4, kPatience).ok());
  daemon.join();
  EXPECT_EQ(heard, (std::vector<std::uint64_t>{1, 3}));
}

TEST_P(RingCommand, PostingNeverWaitsForRoom) {
  const auto engine = client();
  Status status;
  int posted = 0;
  while (status.ok() && posted < 100'000) {
    status = engine->post(ping(1));
    if (status.ok()) ++posted;
  }
  EXPECT_EQ(status.code(), ErrorCode::kWouldBlock);
  for (int i = 0; i < posted; ++i) ASSERT_EQ(next(), 1u);
  EXPECT_EQ(port_.receive().value(), std::nullopt) << "the refused one was not sent";
  EXPECT_TRUE(engine->post(ping(2)).ok());
}

TEST_P(RingCommand, AHangUpOfTheAttachSocketEndsTheCall) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  const UniqueFd engine_end(sockets[0]);
  UniqueFd daemon_end(sockets[1]);
  const auto engine = client();
  auto reply = std::async(std::launch::async, [&] {
    return engine->call(ping(1), 1, kPatience, engine_end.get()).error().code;
  });
  EXPECT_EQ(next(), 1u);  // the command has arrived, and its reply never comes
  daemon_end = UniqueFd();
  EXPECT_EQ(reply.get(), ErrorCode::kUnavailable);
}

TEST_P(RingCommand, AFullRingEndsTheCallByItsDeadline) {
  const auto engine = client();
  std::vector<std::byte> frame = ping(1);
  frame.resize(204800);
  EXPECT_EQ(engine->call(frame, 1, 1ms).error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(engine->call(frame, 2, 1ms).error().code, ErrorCode::kDeadlineExceeded);
  ASSERT_TRUE(port_.send(pong(1)).ok());  // a late reply is no reason to wait for ever
  // The command was never sent, so its number is not used up: the session cannot go on as if it
  // were.
  EXPECT_EQ(engine->call(frame, 3, 20ms).error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(port_.receive().ok());
  EXPECT_TRUE(port_.receive().ok());
  EXPECT_EQ(port_.receive().value(), std::nullopt) << "the third found no room";
}

TEST_P(RingCommand, AnEngineThatReadsNoRepliesIsGone) {
  Status status;
  for (int i = 0; status.ok() && i < 100'000; ++i) status = port_.send(pong(1));
  EXPECT_EQ(status.code(), ErrorCode::kPeerGone);
}

TEST_P(RingCommand, IsDeadInAForkedChild) {
  const auto engine = client();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto reply = engine->call(ping(1), 1, 1ms);
    ::_exit(!reply.ok() && reply.error().code == ErrorCode::kPeerGone ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(Spin, RingCommand, ::testing::Values(Nanoseconds(0), Nanoseconds(200us)),
                         [](const auto& param) {
                           return param.param.count() == 0 ? "Sleeping" : "Spinning";
                         });

TEST(RingCommandClient, RefusesFdsThatAreNoRing) {
  RingPort port = RingPort::create().value();
  const auto fds = port.peer_fds();
  EXPECT_FALSE(ring_command_client(copy_of(fds[1]), copy_of(fds[1])).ok());
  EXPECT_FALSE(ring_command_client(copy_of(fds[0]), UniqueFd()).ok());
}

TEST(ThisProcess, IsAnotherOneInAForkedChild) {
  ASSERT_EQ(this_process(), ::getpid());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(this_process() == ::getpid() && this_process() == ::getpid() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(this_process(), ::getpid());
}

}  // namespace
}  // namespace kvd::transport
