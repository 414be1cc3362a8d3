// A real kvd and real engines, each a process of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/pattern_command.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// 12 requests of 6 blocks of 64 KiB each: two engines want more than twice the HBM there is.
const KvdSettings kTightPool{.hbm = "4MiB", .dram = "16MiB"};

TEST(DaemonProcess, TwoEnginesRotateAndEveryByteIsTheByteWritten) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, kTightPool);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  ChildProcess first(pattern_command(kvd, "a"));
  ChildProcess second(pattern_command(kvd, "bb"));
  for (ChildProcess* engine : {&first, &second}) {
    const json summary = summary_of(*engine);
    EXPECT_EQ(engine->wait(), 0) << engine->errors();
    EXPECT_EQ(summary["pattern_errors"], 0);
    EXPECT_EQ(summary["requests"], 12);
    EXPECT_GT(summary["bytes_checked"], 0);
  }
  const json status = json::parse(kvd.get("/v1/status").body);
  EXPECT_GT(status["counters"]["rotations_out"], 0);
  EXPECT_GT(kvd.metric(R"(kvd_rotations_total{direction="out"})").value_or(0), 0);
  EXPECT_EQ(status["counters"]["engines_died"], 0);
}

ChildCommand rank_of_two(const KvdProcess& kvd, const std::string& rank) {
  return pattern_command(kvd, "rank-" + rank,
                         {"--ranks", "2", "--rank", rank, "--group", "5", "--step-ms", "2"});
}

// Ranks are processes of their own; the one that is killed takes the session of the other along,
// and both begin again once it is back.
TEST(DaemonProcess, AGroupOutlivesTheDeathOfARankAsAnotherGroup) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, {.hbm = "4MiB", .dram = "32MiB"});
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  ChildProcess first(rank_of_two(kvd, "0"));
  const auto tokens = [&] { return json::parse(kvd.get("/v1/status").body)["counters"]["tokens"]; };
  {
    ChildProcess second(rank_of_two(kvd, "1"));
    ASSERT_TRUE(poll_until([&] { return tokens() > 100; })) << kvd.log() << second.errors();
    second.signal(SIGKILL);
    EXPECT_EQ(second.wait(), 128 + SIGKILL);
  }
  ChildProcess second(rank_of_two(kvd, "1"));
  const json summary = summary_of(second);
  EXPECT_EQ(second.wait(), 0) << second.errors();
  EXPECT_EQ(summary["pattern_errors"], 0);
  EXPECT_EQ(summary["requests"], 12);
  const json survivor = summary_of(first);
  EXPECT_EQ(first.wait(), 0) << first.errors();
  EXPECT_GE(survivor["restarts"], 1);
  EXPECT_EQ(survivor["pattern_errors"], 0);
  EXPECT_EQ(survivor["requests"], 12);
  EXPECT_TRUE(poll_until([&] {
    const json document = json::parse(kvd.get("/v1/pools").body);
    for (const json& pool : document["pools"]) {
      if (pool["free_bytes"] != pool["capacity_bytes"]) return false;
    }
    return true;
  })) << kvd.get("/v1/pools").body;
}

TEST(DaemonProcess, ACorruptedByteIsFound) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, kTightPool);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  ChildProcess engine(pattern_command(kvd, "control", {"--corrupt-once"}));
  EXPECT_GT(summary_of(engine)["pattern_errors"], 0);
  EXPECT_EQ(engine.wait(), 1);
}

TEST(DaemonProcess, AStoppedEngineOfAnotherUserIsKilledForThoseThatWait) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, for engines of two users";
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, {.extra = "[engine]\nstep_timeout = '1s'\nevict_after = '100ms'\n"});
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  ChildProcess stopped({{"/usr/bin/setpriv", "--reuid=65534", "--regid=0", "--clear-groups",
                         built_program("kvd-test-engine"), "hold", kvd.endpoint(), "16", "0"},
                        {}});
  ASSERT_TRUE(stopped.wait_for_line("ready")) << stopped.errors();
  stopped.signal(SIGSTOP);
  kvd_client::Options options;
  options.endpoint = kvd.endpoint();
  auto waiting = kvd_client::Client::open(options);
  ASSERT_TRUE(waiting.ok()) << waiting.error().message;
  EXPECT_TRUE(poll_until([&] { return waiting->allocate_region(16 << 20, kPatience).ok(); }))
      << kvd.log();
  EXPECT_EQ(stopped.wait(), 128 + SIGKILL);
}

std::vector<kvd_client::Client> attach_clients(const KvdProcess& kvd, int count) {
  std::vector<kvd_client::Client> clients;
  for (int i = 0; i < count; ++i) {
    kvd_client::Options options;
    options.endpoint = kvd.endpoint();
    options.engine_name = "client-" + std::to_string(i);
    if (i % 2 == 0) options.shape = {4, 0, 0, 1024};
    auto client = kvd_client::Client::open(options);
    EXPECT_TRUE(client.ok());
    if (client.ok()) clients.push_back(std::move(*client));
  }
  return clients;
}

TEST(DaemonProcess, DrainsWithinThreeSecondsWithEightClients) {
  const RuntimeFolder folder;
  KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  auto clients = attach_clients(kvd, 8);
  ASSERT_EQ(clients.size(), 8u);
  for (auto& client : clients) {
    ASSERT_TRUE(client.allocate_region(1 << 20, kPatience).ok());
  }
  const auto start = std::chrono::steady_clock::now();
  kvd.signal(SIGTERM);
  EXPECT_EQ(kvd.wait(), 0) << kvd.log();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
  for (auto& client : clients) {
    EXPECT_EQ(client.ping(std::chrono::milliseconds(50)).code(),
              kvd_client::ErrorCode::kUnavailable);
  }
  EXPECT_FALSE(std::filesystem::exists(kvd.endpoint())) << "the socket file stayed behind";
}

TEST(DaemonProcess, ASecondSignalEndsItAtOnce) {
  const RuntimeFolder folder;
  // A link so slow that copies are under way for as long as the drain waits for them.
  KvdProcess kvd(folder, {.hbm = "4MiB", .dram = "16MiB", .bandwidth = "1MiB/s"});
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  ChildProcess engine(pattern_command(kvd, "slow"));
  ASSERT_TRUE(poll_until(
      [&] { return json::parse(kvd.get("/v1/status").body)["requests"]["swapping_out"] > 0; }));
  kvd.signal(SIGTERM);
  ASSERT_TRUE(poll_until([&] { return kvd.get("/readyz").status != 200; }));
  kvd.signal(SIGTERM);
  EXPECT_EQ(kvd.wait(), 128 + SIGTERM);
}

TEST(DaemonProcess, SighupReadsSlosAgainAndNothingElse) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const json before = json::parse(kvd.get("/v1/policy").body);
  std::ofstream(kvd.config_file()) << toml_of(
      folder, {.hbm = "8MiB", .extra = "[rotation]\nalpha = 7\n[slo.default]\nttft = \"750ms\"\n"},
      kvd.admin_port(), kvd.metrics_port());
  kvd.signal(SIGHUP);
  EXPECT_TRUE(poll_until([&] {
    return json::parse(kvd.get("/v1/slo").body)["classes"]["default"]["ttft_s"] == 0.75;
  })) << kvd.log();
  EXPECT_EQ(json::parse(kvd.get("/v1/policy").body), before);
  EXPECT_EQ(json::parse(kvd.get("/v1/pools").body)["pools"][0]["capacity_bytes"], 16 << 20);

  std::ofstream(kvd.config_file()) << "nonsense = 1\n";
  kvd.signal(SIGHUP);
  EXPECT_TRUE(poll_until([&] { return kvd.log().find("not reloaded") != std::string::npos; }));
  EXPECT_EQ(kvd.get("/readyz").status, 200);
}

TEST(DaemonProcess, RestAndMetricsAnswerAndChangesNeedTheToken) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  for (const char* path : {"/healthz", "/readyz", "/v1/status", "/v1/config", "/v1/pools",
                           "/v1/engines", "/v1/requests", "/v1/policy", "/v1/slo"}) {
    EXPECT_EQ(kvd.get(path).status, 200) << path;
  }
  EXPECT_EQ(kvd.patch("/v1/policy", R"({"rotation":{"alpha":5}})").status, 200);
  EXPECT_EQ(kvd.metric(R"(kvd_policy_parameter{decision="rotation",parameter="alpha"})"), 5.0)
      << kvd.metrics();
  EXPECT_EQ(kvd.patch("/v1/policy", R"({"rotation":{"policy":"unheard-of"}})").status, 400);
  std::filesystem::permissions(folder.file("admin.token"), std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  std::ofstream(folder.file("admin.token")) << "not the token that was read at start";
  EXPECT_EQ(kvd.patch("/v1/policy", R"({"rotation":{"alpha":6}})").status, 401);
}

TEST(DaemonProcess, AForeignUserIsDenied) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, {.extra = "[[domain]]\nname = \"root-only\"\nuids = [0]\n"});
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const auto ask = [&] {
    ChildProcess stranger({{built_program("kvd-test-engine"), "uid", kvd.endpoint(), "65534"}, {}});
    return stranger.wait_for_line(":").value_or("nothing");
  };
  EXPECT_THAT(ask(), testing::AllOf(HasSubstr("PermissionDenied"), HasSubstr("group")))
      << "the socket's mode keeps everybody else out";
  std::filesystem::permissions(kvd.endpoint(), std::filesystem::perms(0666));
  EXPECT_THAT(ask(), testing::AllOf(HasSubstr("PermissionDenied"), HasSubstr("65534"),
                                    HasSubstr("domain")));
  EXPECT_EQ(json::parse(kvd.get("/v1/status").body)["engines"], 0);
}

TEST(DaemonProcess, TheSocketsOfAKilledDaemonAreReplaced) {
  const RuntimeFolder folder;
  {
    KvdProcess kvd(folder);
    ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
    kvd.signal(SIGKILL);
    EXPECT_EQ(kvd.wait(), 128 + SIGKILL);
  }
  ASSERT_TRUE(std::filesystem::exists(folder.file("attach.sock")));
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  EXPECT_EQ(attach_clients(kvd, 1).size(), 1u);
}

class StoppedDaemon : public ::testing::TestWithParam<kvd_client::Transport> {};

TEST_P(StoppedDaemon, KeepsTheSessionOfACommandThatCameMeanwhile) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  kvd_client::Options options;
  options.endpoint = kvd.endpoint();
  options.transport = GetParam();
  auto client = kvd_client::Client::open(options);
  ASSERT_TRUE(client.ok());
  const auto engine = client->session()->engine;
  for (int i = 0; i < 2; ++i) {  // before its first command, and after
    kvd.signal(SIGSTOP);
    EXPECT_EQ(client->ping(std::chrono::milliseconds(200)).code(),
              kvd_client::ErrorCode::kDeadlineExceeded);
    kvd.signal(SIGCONT);
    EXPECT_TRUE(client->ping(kPatience).ok());
    EXPECT_EQ(client->session()->engine, engine) << "attached anew";
  }
}

INSTANTIATE_TEST_SUITE_P(Transport, StoppedDaemon,
                         ::testing::Values(kvd_client::Transport::kZmq,
                                           kvd_client::Transport::kRing),
                         [](const auto& param) {
                           return param.param == kvd_client::Transport::kZmq ? "OverZmq"
                                                                             : "OverTheRing";
                         });

}  // namespace
}  // namespace kvd::test
