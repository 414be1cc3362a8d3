// The daemon is killed while engines run: they learn it at once, keep their old memory, and are
// back by themselves when another one serves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;

json status_of(const KvdProcess& kvd) { return json::parse(kvd.get("/v1/status").body); }

void kill_and_wait(KvdProcess& kvd) {
  kvd.signal(SIGKILL);
  ASSERT_EQ(kvd.wait(), 128 + SIGKILL);
}

TEST(Restart, AnEngineReadsItsOldRegionAndComesBackByItself) {
  const RuntimeFolder folder;
  std::optional<KvdProcess> kvd(std::in_place, folder);
  ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
  ChildProcess engine({{built_program("kvd-test-engine"), "reattach", kvd->endpoint(), "4"}, {}});
  ASSERT_TRUE(engine.wait_for_line("ready")) << engine.errors();
  EXPECT_EQ(kvd->metric("kvd_orphaned_bytes"), 0.0);
  kill_and_wait(*kvd);
  ASSERT_TRUE(engine.wait_for_line("unavailable")) << engine.errors();

  kvd.emplace(folder);
  ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
  ASSERT_TRUE(engine.wait_for_line("attached")) << engine.errors();
  EXPECT_EQ(engine.wait_for_line("").value_or(""), "intact");
  EXPECT_EQ(status_of(*kvd)["engines"], 1);
  // What kvd shows is up to a tenth of a second old.
  const auto orphaned = [&](double bytes) {
    return poll_until([&] { return kvd->metric("kvd_orphaned_bytes") == bytes; });
  };
  EXPECT_TRUE(orphaned(4.0 * (1 << 20)));
  engine.signal(SIGUSR1);
  EXPECT_TRUE(engine.wait_for_line("freed")) << engine.errors();
  EXPECT_TRUE(orphaned(0.0));
  EXPECT_EQ(status_of(*kvd)["engines"], 1) << "the session goes on";
}

// A pool of half the demand, under a policy that rotates whenever somebody lags. Steps of 20 ms, so
// that the engine is still at work when its daemon is killed.
const KvdSettings kLvf{.hbm = "4MiB",
                       .dram = "16MiB",
                       .extra =
                           "[rotation]\npolicy = 'lvf'\n[placement]\npolicy = 'none'\n"
                           "[admission]\npolicy = 'none'\n"};

class SteppingRestart : public ::testing::TestWithParam<bool> {};

TEST_P(SteppingRestart, StartsItsRequestsOverAndReadsNoWrongByte) {
  const RuntimeFolder folder;
  std::optional<KvdProcess> kvd(std::in_place, folder, kLvf);
  ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
  ChildCommand command{
      {built_program("kvd-pattern"), "--endpoint", kvd->endpoint(), "--requests", "12", "--prompt",
       "48", "--new", "48", "--tbt-slo-ms", "1", "--ttft-slo-ms", "2", "--step-ms", "20", "--json"},
      {}};
  if (GetParam()) command.arguments.emplace_back("--ring");
  ChildProcess engine(command);
  ASSERT_TRUE(poll_until([&] { return status_of(*kvd)["counters"]["rotations_in"] > 2; }));
  kill_and_wait(*kvd);
  kvd.emplace(folder, kLvf);
  ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
  const auto line = engine.wait_for_line("{");
  ASSERT_TRUE(line) << engine.errors();
  EXPECT_EQ(engine.wait(), 0) << engine.errors();
  const json summary = json::parse(*line);
  EXPECT_EQ(summary["pattern_errors"], 0);
  EXPECT_EQ(summary["requests"], 12);
  EXPECT_GE(summary["restarts"], 1);
}

INSTANTIATE_TEST_SUITE_P(Transport, SteppingRestart, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "OverTheRing" : "OverZmq"; });

TEST(Restart, TheRanksOfAGroupFindTogetherAgain) {
  const RuntimeFolder folder;
  std::optional<KvdProcess> kvd(std::in_place, folder, kLvf);
  ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
  const auto rank = [&](const char* number) {
    return ChildCommand{{built_program("kvd-pattern"), "--endpoint", kvd->endpoint(), "--requests",
                         "12", "--prompt", "48", "--new", "48", "--step-ms", "20", "--json",
                         "--ranks", "2", "--group", "3", "--rank", number},
                        {}};
  };
  ChildProcess first(rank("0"));
  ChildProcess second(rank("1"));
  ASSERT_TRUE(poll_until([&] { return status_of(*kvd)["counters"]["tokens"] > 100; }));
  kill_and_wait(*kvd);
  kvd.emplace(folder, kLvf);
  ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
  for (ChildProcess* engine : {&first, &second}) {
    const auto line = engine->wait_for_line("{");
    ASSERT_TRUE(line) << engine->errors();
    EXPECT_EQ(engine->wait(), 0) << engine->errors();
    const json summary = json::parse(*line);
    EXPECT_EQ(summary["pattern_errors"], 0);
    EXPECT_EQ(summary["requests"], 12);
    EXPECT_GE(summary["restarts"], 1);
  }
}

// Hangs as a rank does in a call to another rank that is gone.
TEST(Restart, WhatIsLeftOfAGroupIsKilledAfterItsTime) {
  const RuntimeFolder folder;
  KvdSettings settings = kLvf;
  settings.extra += "[engine]\nevict_after = '300ms'\nstep_timeout = '200ms'\n";
  const KvdProcess kvd(folder, settings);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const auto rank = [&](const char* number) {
    return ChildCommand{
        {built_program("kvd-pattern"), "--endpoint", kvd.endpoint(), "--requests", "12",
         "--step-ms", "50", "--json", "--ranks", "2", "--group", "3", "--rank", number},
        {}};
  };
  ChildProcess first(rank("0"));
  ChildProcess second(rank("1"));
  ASSERT_TRUE(poll_until([&] { return status_of(kvd)["counters"]["tokens"] > 10; }));
  second.signal(SIGSTOP);
  first.signal(SIGKILL);
  EXPECT_EQ(first.wait(), 128 + SIGKILL);
  EXPECT_EQ(second.wait(), 128 + SIGKILL) << kvd.log();
  EXPECT_TRUE(poll_until([&] { return status_of(kvd)["engines"] == 0; }));
}

}  // namespace
}  // namespace kvd::test
