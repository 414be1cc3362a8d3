// Sessions whose commands come through a ring in shared memory.
#include <gtest/gtest.h>

#include <thread>

#include "client_lib/examples/pattern_engine.hpp"
#include "tests/support/daemon_thread.hpp"
#include "tests/support/raw_engine.hpp"

namespace kvd::test {
namespace {

kvd_client::Options options_of(const DaemonThread& daemon, const std::string& name,
                               kvd_client::Transport transport) {
  kvd_client::Options options;
  options.endpoint = daemon.endpoint();
  options.engine_name = name;
  options.shape = {4, 0, 0, 1024};
  options.transport = transport;
  return options;
}

RawEngine attached(const DaemonThread& daemon, const std::string& name,
                   wire::TransportKind transport) {
  auto engine = RawEngine::attach(daemon.endpoint(), name, {}, transport);
  KVD_CHECK(engine.ok(), "the engine attaches");
  return std::move(engine).value();
}

/// An engine that writes a pattern and finds it again, whatever is rotated meanwhile.
void play_pattern(const DaemonThread& daemon, kvd_client::Transport transport, std::uint64_t seed) {
  kvd_pattern::PatternOptions options;
  options.name = "engine-" + std::to_string(seed);
  options.requests = 16;
  options.prompt = 48;
  options.new_tokens = 48;
  options.shape = {4, 0, 0, 1024};
  options.seed = seed;
  options.json = true;
  auto client = kvd_client::Client::open(options_of(daemon, options.name, transport));
  KVD_CHECK(client.ok(), "the engine attaches");
  kvd_pattern::PatternEngine engine(std::move(*client), options);
  const auto result = engine.run();
  EXPECT_TRUE(result.ok()) << result.error().message;
  EXPECT_GT(engine.summary().bytes_checked, 0u);
  EXPECT_EQ(engine.summary().pattern_errors, 0u);
}

TEST(RingSession, RotatesBesideAZmqSessionAndEveryByteIsTheByteWritten) {
  DaemonThread daemon([](daemon::Config& config) {
    config.hbm = 4 * kMiB;
    config.tuning.slo["default"].ttft = std::chrono::milliseconds(2);
    config.tuning.slo["default"].tbt = std::chrono::milliseconds(1);
  });
  const kvd_client::Transport transports[] = {kvd_client::Transport::kRing,
                                              kvd_client::Transport::kZmq};
  std::thread engines[2];
  for (std::size_t i = 0; i < 2; ++i) {
    engines[i] = std::thread([&, i] { play_pattern(daemon, transports[i], i + 1); });
  }
  for (auto& engine : engines) engine.join();
  EXPECT_GT(daemon.status().counters.rotations_out, 0u);
  EXPECT_TRUE(daemon.wait_all_free());
}

TEST(RingSession, ItsCommandsAreNotTakenFromZmqNorTheOtherWayRound) {
  DaemonThread daemon;
  RawEngine over_ring = attached(daemon, "ring", wire::TransportKind::kRing);
  RawEngine over_zmq = attached(daemon, "zmq", wire::TransportKind::kZmq);
  ASSERT_TRUE(over_ring.call(wire::PingCommand{}).ok());
  ASSERT_TRUE(over_zmq.call(wire::PingCommand{}).ok());

  // A ring that carries the other session's key and number.
  const auto steal = [&](wire::CommandHeader& header) {
    header.key = over_zmq.welcome().session_key;
    header.generation = over_zmq.welcome().generation;
  };
  EXPECT_EQ(over_ring.call(wire::PingCommand{}, steal).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(over_zmq.call(wire::PingCommand{}).ok()) << "nothing of it was counted";

  over_ring.use(
      transport::zmq_command_client(std::string(wire::text(over_ring.welcome().command_endpoint)))
          .value());
  EXPECT_EQ(over_ring.call(wire::PingCommand{}).code(), ErrorCode::kInvalidArgument);
}

TEST(RingSession, ARingThatCannotBeEndsItsSessionAndNoOther) {
  DaemonThread daemon;
  RawEngine good = attached(daemon, "good", wire::TransportKind::kRing);
  RawEngine hostile = attached(daemon, "hostile", wire::TransportKind::kRing);
  ASSERT_TRUE(hostile.call(wire::PingCommand{}).ok());
  hostile.ring().commands.written = ~std::uint64_t{0};
  hostile.ring_the_bell();
  EXPECT_TRUE(daemon.wait_until([](const core::ControllerStatus& status) {
    return status.engines.size() == 1 || engine_named(status, "hostile")->dying;
  }));
  EXPECT_EQ(hostile.page().poison.load(), 1u);
  EXPECT_TRUE(good.call(wire::PingCommand{}).ok());
}

TEST(RingSession, AFloodOfBellsLeavesOthersTheirTurn) {
  DaemonThread daemon;
  RawEngine hostile = attached(daemon, "hostile", wire::TransportKind::kRing);
  RawEngine good = attached(daemon, "good", wire::TransportKind::kZmq);
  std::atomic<bool> done = false;
  std::thread flood([&] {
    while (!done) hostile.ring_the_bell();
  });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(good.call(wire::PingCommand{}).ok());
  done = true;
  flood.join();
}

TEST(RingSession, ADaemonThatSpinsServesAsOneThatSleeps) {
  DaemonThread daemon(
      [](daemon::Config& config) { config.promptness.ring_spin = std::chrono::microseconds(300); });
  RawEngine one = attached(daemon, "one", wire::TransportKind::kRing);
  RawEngine two = attached(daemon, "two", wire::TransportKind::kRing);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(one.call(wire::PingCommand{}).ok());
    ASSERT_TRUE(two.call(wire::PingCommand{}).ok());
  }
}

}  // namespace
}  // namespace kvd::test
