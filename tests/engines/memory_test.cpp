/// Unmodified engines whose KV caches lie in the daemon's pool: same results bit for bit, memory
/// accounted for by the daemon and by the kernel, and back when an engine dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/engines/daemon_process.hpp"
#include "tests/engines/workbench.hpp"

namespace kvd::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

const std::vector<std::string> kPauseHalfWay = {"--pause-at", "128"};

class Memory : public ::testing::Test {
 protected:
  /// Waits until the engine stands still half-way.
  static void await_pause(ChildProcess& engine) {
    ASSERT_TRUE(engine.wait_for_line("paused").has_value()) << engine.errors();
  }

  static void expect_finishes(ChildProcess& engine) {
    engine.signal(SIGUSR1);
    EXPECT_EQ(engine.wait(), 0) << engine.errors();
  }

  /// The daemon's count of what it serves to the engine is the kernel's count of what is mapped.
  static void expect_served(const DaemonProcess& daemon, pid_t engine) {
    EXPECT_GT(daemon.bytes_served_to(engine), 0U);
    EXPECT_EQ(daemon.bytes_served_to(engine), mapped_pool_bytes(engine));
  }

  Workbench bench_;
};

TEST_F(Memory, OfTwoEnginesAtOnceComesFromThePoolAndChangesNoBit) {
  const std::vector<std::string> longer = {"--prompt-tokens", "100"};
  ASSERT_EQ(run_to_end(bench_.plain_engine("plain a")), 0);
  ASSERT_EQ(run_to_end(bench_.plain_engine("plain b", longer)), 0);
  DaemonProcess daemon(4);

  ChildProcess a(bench_.kvd_engine("a", daemon.endpoint(), kPauseHalfWay));
  ChildProcess b(
      bench_.kvd_engine("b", daemon.endpoint(), {"--prompt-tokens", "100", "--pause-at", "128"}));
  await_pause(a);
  await_pause(b);
  EXPECT_THAT(daemon.engines(), SizeIs(2));
  expect_served(daemon, a.pid());
  expect_served(daemon, b.pid());
  expect_finishes(a);
  expect_finishes(b);

  EXPECT_EQ(bench_.compare("plain a", "a"), 0);
  EXPECT_EQ(bench_.compare("plain b", "b"), 0);
  EXPECT_NE(bench_.compare("plain a", "b"), 0);
  EXPECT_TRUE(daemon.wait_until_all_returned());
}

/// The control of the test above: had the KV cache been anywhere else, this would pass the check
/// too.
TEST_F(Memory, ZeroedOnceFailsTheSameComparison) {
  ASSERT_EQ(run_to_end(bench_.plain_engine("plain")), 0);
  DaemonProcess daemon(2);
  ChildProcess sut(bench_.kvd_engine("sut", daemon.endpoint(), kPauseHalfWay));
  await_pause(sut);
  ASSERT_EQ(run_to_end({{built_program("kvd-zero-pool"), "--pid", std::to_string(sut.pid())}, {}}),
            0);
  expect_finishes(sut);
  EXPECT_EQ(bench_.compare("plain", "sut"), 1);
}

TEST_F(Memory, OfAPlainEngineIsNotThePools) {
  DaemonProcess daemon(2);
  ChildProcess plain(bench_.plain_engine("plain", kPauseHalfWay));
  await_pause(plain);
  EXPECT_EQ(daemon.bytes_served_to(plain.pid()), 0U);
  EXPECT_EQ(mapped_pool_bytes(plain.pid()), 0U);
  EXPECT_EQ(
      run_to_end({{built_program("kvd-zero-pool"), "--pid", std::to_string(plain.pid())}, {}}), 1);
  expect_finishes(plain);
}

TEST_F(Memory, OfSeveralContextsIsFreedAndTakenAgain) {
  const std::vector<std::string> options = {"--contexts", "2", "--rounds", "3", "--tokens", "64"};
  ASSERT_EQ(run_to_end(bench_.plain_engine("plain", options)), 0);
  DaemonProcess daemon(2);  // room for one round's contexts only
  ASSERT_EQ(run_to_end(bench_.kvd_engine("sut", daemon.endpoint(), options)), 0);
  EXPECT_EQ(bench_.compare("plain", "sut", 20), 0);
}

/// The threads that compute on KVD0 are not the ones llama.cpp makes for its CPU backend.
TEST_F(Memory, OfAnEngineWithSeveralThreadsChangesNoBit) {
  const std::vector<std::string> options = {"--threads", "2", "--tokens", "8"};
  ASSERT_EQ(run_to_end(bench_.plain_engine("plain", options)), 0);
  DaemonProcess daemon(2);
  ASSERT_EQ(run_to_end(bench_.kvd_engine("sut", daemon.endpoint(), options)), 0);
  EXPECT_EQ(bench_.compare("plain", "sut", 2), 0);
}

/// This is llama.cpp's own default (auto). It keeps the default only where the layer's device
/// computes it.
TEST_F(Memory, LeavesFlashAttentionOn) {
  DaemonProcess daemon(2);
  ChildProcess sut(bench_.kvd_engine("sut", daemon.endpoint(), {"--tokens", "1"}));
  EXPECT_EQ(sut.wait(), 0);
  EXPECT_THAT(sut.errors(), Not(HasSubstr("Flash Attention")));
}

TEST_F(Memory, OfSomeLayersLeavesTheOthersAlone) {
  const std::vector<std::string> options = {"--gpu-layers", "3"};
  ASSERT_EQ(run_to_end(bench_.plain_engine("plain", options)), 0);
  DaemonProcess daemon(2);
  ChildProcess sut(bench_.kvd_engine("sut", daemon.endpoint(), options));
  EXPECT_EQ(sut.wait(), 0);
  EXPECT_THAT(sut.errors(), Not(HasSubstr("Flash Attention")));
  EXPECT_EQ(bench_.compare("plain", "sut"), 0);
}

/// The KV cache of all layers, or of some, stays in the engine's own memory.
TEST_F(Memory, ThatIsRequiredEndsAnEngineThatKeepsItsOwn) {
  DaemonProcess daemon(2);
  for (const char* layers : {"0", "3"}) {
    ChildCommand command = bench_.kvd_engine("sut", daemon.endpoint(), {"--gpu-layers", layers});
    command.environment.emplace_back("KVD_LLAMA_REQUIRE=1");
    ChildProcess sut(command);
    EXPECT_EQ(sut.wait(), 1) << layers;
    EXPECT_THAT(sut.errors(), HasSubstr("kvd: KVD_LLAMA_REQUIRE=1, but the KV cache")) << layers;
  }
}

TEST_F(Memory, ThatIsRequiredAndLentLetsTheEngineRun) {
  DaemonProcess daemon(2);
  ChildCommand command = bench_.kvd_engine("sut", daemon.endpoint());
  command.environment.emplace_back("KVD_LLAMA_REQUIRE=1");
  ChildProcess sut(command);
  EXPECT_EQ(sut.wait(), 0) << sut.errors();
}

TEST_F(Memory, ThatIsUsedUpMayBeWaitedFor) {
  ASSERT_EQ(run_to_end(bench_.plain_engine("plain")), 0);
  DaemonProcess daemon(1);
  ChildProcess first(bench_.kvd_engine("first", daemon.endpoint(), kPauseHalfWay));
  await_pause(first);
  ChildCommand command = bench_.kvd_engine("second", daemon.endpoint());
  command.environment.emplace_back("KVD_LLAMA_WAIT=60");
  ChildProcess second(command);
  ASSERT_TRUE(second.wait_for_error("waiting for it (KVD_LLAMA_WAIT)")) << second.errors();
  expect_finishes(first);
  EXPECT_EQ(second.wait(), 0) << second.errors();
  EXPECT_EQ(bench_.compare("plain", "second"), 0);
}

TEST_F(Memory, ThatDoesNotComeInTimeFailsTheContext) {
  DaemonProcess daemon(1);
  ChildProcess first(bench_.kvd_engine("first", daemon.endpoint(), kPauseHalfWay));
  await_pause(first);
  ChildCommand command = bench_.kvd_engine("second", daemon.endpoint());
  command.environment.emplace_back("KVD_LLAMA_WAIT=1");
  ChildProcess second(command);
  EXPECT_EQ(second.wait(), 1);
  EXPECT_THAT(second.errors(), HasSubstr("(waited for it: KVD_LLAMA_WAIT)"));
}

TEST_F(Memory, ThatIsUsedUpFailsOneEngineAndNoOther) {
  ASSERT_EQ(run_to_end(bench_.plain_engine("plain")), 0);
  DaemonProcess daemon(1);
  ChildProcess first(bench_.kvd_engine("first", daemon.endpoint(), kPauseHalfWay));
  await_pause(first);
  ChildProcess second(bench_.kvd_engine("second", daemon.endpoint()));
  EXPECT_EQ(second.wait(), 1);
  EXPECT_THAT(second.errors(), HasSubstr("kvd: no memory for a KV buffer"));
  expect_finishes(first);
  EXPECT_EQ(bench_.compare("plain", "first"), 0);
}

TEST_F(Memory, OfAKilledEngineComesBackAndServesTheNext) {
  ASSERT_EQ(run_to_end(bench_.plain_engine("plain")), 0);
  DaemonProcess daemon(1);  // the next engine needs the dead one's slab
  ChildProcess killed(bench_.kvd_engine("killed", daemon.endpoint(), kPauseHalfWay));
  await_pause(killed);
  expect_served(daemon, killed.pid());
  killed.signal(SIGKILL);
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  ASSERT_TRUE(daemon.wait_until_all_returned());
  EXPECT_EQ(daemon.counter("engines_died"), 1U);
  EXPECT_EQ(run_to_end(bench_.kvd_engine("next", daemon.endpoint())), 0);
  EXPECT_EQ(bench_.compare("plain", "next"), 0);
}

TEST_F(Memory, ComesBackWhenAnEngineIsToldToStop) {
  DaemonProcess daemon(1);
  ChildProcess sut(bench_.kvd_engine("sut", daemon.endpoint(), kPauseHalfWay));
  await_pause(sut);
  sut.signal(SIGTERM);
  EXPECT_TRUE(sut.wait_for_line("stopped").has_value());
  EXPECT_EQ(sut.wait(), 0);
  EXPECT_TRUE(daemon.wait_until_all_returned());
  EXPECT_EQ(daemon.counter("engines_died"), 0U);
}

}  // namespace
}  // namespace kvd::test
