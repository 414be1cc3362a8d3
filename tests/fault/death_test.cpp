// Engines that die, stop or leave a child behind: their memory comes back zeroed and nothing of
// theirs reaches it any more.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/daemon_thread.hpp"

namespace kvd::test {
namespace {

ChildCommand engine(DaemonThread& daemon, const std::string& mode,
                    const std::vector<std::string>& numbers) {
  ChildCommand command{{built_program("kvd-test-engine"), mode, daemon.endpoint()}, {}};
  command.arguments.insert(command.arguments.end(), numbers.begin(), numbers.end());
  return command;
}

kvd_client::Client opened(DaemonThread& daemon) {
  kvd_client::Options options;
  options.endpoint = daemon.endpoint();
  options.engine_name = "next";
  auto client = kvd_client::Client::open(options);
  KVD_CHECK(client.ok(), "attach");
  return std::move(*client);
}

bool is_all(const kvd_client::Region& region, std::byte value) {
  return std::all_of(region.address, region.address + region.bytes,
                     [=](std::byte b) { return b == value; });
}

TEST(EngineDeath, TheMemoryOfALargeKilledEngineComesBackZeroed) {
  DaemonThread daemon([](daemon::Config& config) { config.hbm = 64 * kMiB; });
  ChildProcess victim(engine(daemon, "hold", {"64", "256"}));
  ASSERT_TRUE(victim.wait_for_line("ready")) << victim.errors();
  ASSERT_EQ(daemon.status().tiers[0].region, 64 * kMiB);
  victim.signal(SIGKILL);
  ASSERT_TRUE(daemon.wait_all_free());
  const auto status = daemon.status();
  EXPECT_EQ(status.counters.engines_died, 1u);
  EXPECT_TRUE(status.engines.empty());

  auto next = opened(daemon);
  const auto region = next.allocate_region(64 << 20, kPatience);
  ASSERT_TRUE(region.ok()) << region.error().message;
  EXPECT_TRUE(is_all(*region, std::byte{0}));
}

TEST(EngineDeath, EnginesThatLeaveInOrderDidNotDie) {
  DaemonThread daemon;
  { const auto client = opened(daemon); }
  ASSERT_TRUE(daemon.wait_until([](const auto& status) { return status.engines.empty(); }));
  EXPECT_EQ(daemon.status().counters.engines_died, 0u);
}

TEST(EngineDeath, AChildThatOutlivesAKilledEngineReachesNoByteOfARegrantedSlab) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer cannot follow the child of a process that has threads";
#endif
  DaemonThread daemon([](daemon::Config& config) { config.hbm = 8 * kMiB; });
  ChildProcess parent(engine(daemon, "fork", {"8"}));
  const auto line = parent.wait_for_line("child ");
  ASSERT_TRUE(line) << parent.errors();
  const pid_t child = std::stoi(line->substr(6));
  parent.signal(SIGKILL);
  ASSERT_TRUE(daemon.wait_all_free()) << "the parent is gone, whatever its child does";

  auto next = opened(daemon);
  const auto region = next.allocate_region(8 << 20, kPatience);
  ASSERT_TRUE(region.ok()) << region.error().message;
  EXPECT_TRUE(is_all(*region, std::byte{0}));
  std::fill_n(region->address, region->bytes, std::byte{0x3C});
  ASSERT_EQ(::kill(child, SIGUSR1), 0) << "the child is gone";
  EXPECT_TRUE(parent.wait_for_line("refused"));
  EXPECT_TRUE(is_all(*region, std::byte{0x3C}));
  ::kill(child, SIGKILL);
}

TEST(EngineDeath, AStoppedEngineIsUnresponsiveUntilItGoesOn) {
  DaemonThread daemon(
      [](daemon::Config& config) { config.step_timeout = std::chrono::seconds(1); });
  ChildProcess stopped(engine(daemon, "hold", {"2", "0"}));
  ASSERT_TRUE(stopped.wait_for_line("ready")) << stopped.errors();
  const auto responsive = [](bool wanted) {
    return [wanted](const core::ControllerStatus& status) {
      const auto engine = engine_named(status, "hold");
      return engine && engine->responsive == wanted;
    };
  };
  ASSERT_TRUE(daemon.wait_until(responsive(true)));
  stopped.signal(SIGSTOP);
  EXPECT_TRUE(daemon.wait_until(responsive(false)));
  EXPECT_EQ(engine_named(daemon.status(), "hold")->region, 2 * kMiB) << "it keeps what it holds";
  EXPECT_EQ(daemon.status().counters.engines_died, 0u);
  stopped.signal(SIGCONT);
  EXPECT_TRUE(daemon.wait_until(responsive(true)));
}

TEST(EngineDeath, AStoppedEngineIsKilledForThoseThatWaitForWhatItHolds) {
  DaemonThread daemon([](daemon::Config& config) {
    config.hbm = 8 * kMiB;
    config.step_timeout = std::chrono::seconds(1);
    config.evict_after = std::chrono::milliseconds(100);
  });
  ChildProcess stopped(engine(daemon, "hold", {"8", "0"}));
  ASSERT_TRUE(stopped.wait_for_line("ready")) << stopped.errors();
  stopped.signal(SIGSTOP);
  auto waiting = opened(daemon);
  EXPECT_TRUE(poll_until([&] { return waiting.allocate_region(8 << 20, kPatience).ok(); }));
  EXPECT_EQ(stopped.wait(), 128 + SIGKILL);
}

}  // namespace
}  // namespace kvd::test
