// kvdctl doctor, beside a real kvd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;

struct Visit {
  std::optional<int> status;
  json findings;
};

Visit doctor(const RuntimeFolder& folder, const KvdProcess& kvd) {
  ChildProcess process({{built_program("kvdctl"), "--json", "doctor", "--runtime-dir",
                         folder.path(), "--token-file", folder.file("admin.token"), "--url",
                         "http://127.0.0.1:" + std::to_string(kvd.admin_port())},
                        {}});
  std::string text;
  while (const auto line = process.wait_for_line("")) text += *line + "\n";
  Visit visit{process.wait(), json::parse(text, nullptr, false)};
  return visit;
}

/// The severities of what was found about `check`.
std::vector<std::string> found(const Visit& visit, const std::string& check) {
  std::vector<std::string> severities;
  for (const json& finding : visit.findings.at("findings")) {
    if (finding.at("check") == check) severities.push_back(finding.at("severity"));
  }
  return severities;
}

TEST(Doctor, FindsARunningKvdSoundAndAKilledOnesSocketsStale) {
  const RuntimeFolder folder;
  KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const Visit sound = doctor(folder, kvd);
  EXPECT_EQ(sound.status, 0) << sound.findings;
  for (const char* check : {"folder", "sockets", "token", "admin"}) {
    EXPECT_THAT(found(sound, check), testing::Each("ok")) << sound.findings;
  }
  kvd.signal(SIGKILL);
  ASSERT_TRUE(kvd.wait());
  const Visit sick = doctor(folder, kvd);
  EXPECT_EQ(sick.status, 1) << sick.findings;
  EXPECT_THAT(found(sick, "sockets"), testing::ElementsAre("fault")) << sick.findings;
}

// It is not told where kvd is: kvdctl's own address of it is enough.
TEST(Doctor, FindsAKvdWhereItSaysThatItListensAndByKvdEndpoint) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const std::string url = "KVD_ADMIN_URL=http://127.0.0.1:" + std::to_string(kvd.admin_port());
  for (const std::string& endpoint :
       {std::string("KVD_ENDPOINT"), "KVD_ENDPOINT=" + kvd.endpoint()}) {
    ChildProcess process({{built_program("kvdctl"), "doctor"},
                          {url, endpoint, "KVD_ADMIN_TOKEN_FILE=" + folder.file("admin.token")}});
    EXPECT_TRUE(process.wait_for_line("kvd listens at " + kvd.endpoint())) << endpoint;
    EXPECT_EQ(process.wait(), 0) << endpoint;
  }
  ChildProcess other({{built_program("kvdctl"), "doctor"},
                      {url, "KVD_ENDPOINT=" + folder.file("other.sock"),
                       "KVD_ADMIN_TOKEN_FILE=" + folder.file("admin.token")}});
  EXPECT_TRUE(other.wait_for_line("not at " + folder.file("other.sock")));
  EXPECT_EQ(other.wait(), 1);
}

TEST(Doctor, SaysWhetherAnswersGoBeforeOtherPrograms) {
  {
    const RuntimeFolder folder;
    const KvdProcess kvd(folder, {.extra = "[engine]\nrealtime = \"never\"\n"});
    ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
    EXPECT_THAT(found(doctor(folder, kvd), "realtime"), testing::ElementsAre("warning"));
  }
  const RuntimeFolder folder;
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const auto says = [&](const char* text) { return kvd.log().find(text) != std::string::npos; };
  ASSERT_TRUE(poll_until([&] { return says("SCHED_RR") || says("wait for a core"); }));
  const bool is = (::sched_getscheduler(kvd.pid()) & ~SCHED_RESET_ON_FORK) == SCHED_RR;
  EXPECT_EQ(is, says("SCHED_RR")) << kvd.log();
  EXPECT_THAT(found(doctor(folder, kvd), "realtime"), testing::ElementsAre(is ? "ok" : "warning"));
}

TEST(Doctor, FindsATokenThatOthersMayRead) {
  const RuntimeFolder folder;
  KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  using std::filesystem::perms;
  std::filesystem::permissions(folder.file("admin.token"), perms::others_read,
                               std::filesystem::perm_options::add);
  const Visit sick = doctor(folder, kvd);
  EXPECT_EQ(sick.status, 1) << sick.findings;
  EXPECT_THAT(found(sick, "token"), testing::ElementsAre("fault")) << sick.findings;
}

}  // namespace
}  // namespace kvd::test
