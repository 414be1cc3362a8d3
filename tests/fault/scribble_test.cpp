// An engine that writes nonsense into the page it shares with the daemon: it harms itself at most.
#include <gtest/gtest.h>

#include "tests/support/daemon_process.hpp"
#include "tests/support/daemon_thread.hpp"

namespace kvd::test {
namespace {

class Scribble : public testing::TestWithParam<const char*> {};

TEST_P(Scribble, HarmsNobodyElse) {
  DaemonThread daemon([](daemon::Config& config) { config.hbm = 4 * kMiB; });
  ChildProcess liar(
      {{built_program("kvd-test-engine"), "scribble", daemon.endpoint(), GetParam(), "500"}, {}});
  ASSERT_TRUE(liar.wait_for_line("ready")) << liar.errors();
  // An engine that checks every byte it reads rotates meanwhile.
  ChildProcess honest(
      {{built_program("kvd-pattern"), "--endpoint", daemon.endpoint(), "--requests", "12",
        "--prompt", "48", "--new", "48", "--tbt-slo-ms", "1", "--ttft-slo-ms", "2", "--json"},
       {}});
  const auto summary = honest.wait_for_line("{");
  ASSERT_TRUE(summary) << honest.errors();
  EXPECT_NE(summary->find("\"pattern_errors\":0,"), std::string::npos) << *summary;
  EXPECT_EQ(honest.wait(), 0) << honest.errors();
  ASSERT_TRUE(liar.wait_for_line("done")) << liar.errors();

  liar.signal(SIGKILL);
  EXPECT_TRUE(daemon.wait_all_free());
  EXPECT_TRUE(daemon.wait_until([](const auto& status) { return status.engines.empty(); }));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Scribble,
                         testing::Values("ones", "zero", "died", "random", "words"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvd::test
