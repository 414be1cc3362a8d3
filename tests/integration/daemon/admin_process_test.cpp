// kvd-admin as a process of its own: what strangers send to REST and the metrics does not reach
// kvd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::test {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string text_of(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

std::string proc(pid_t pid, const char* file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

/// The value of a line of /proc/PID/status: "PPid", "Uid", …
std::string status_of(pid_t pid, const std::string& key) {
  std::istringstream lines(text_of(proc(pid, "status")));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + ":\t")) return line.substr(key.size() + 2);
  }
  return "";
}

/// The kvd-admin of a kvd; 0: there is none now.
pid_t admin_of(const KvdProcess& kvd) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid > 0 && status_of(pid, "PPid") == std::to_string(kvd.pid()) &&
        status_of(pid, "Name") == "kvd-admin") {
      return pid;
    }
  }
  return 0;
}

/// 0 where they may not be seen.
std::size_t descriptors_of(pid_t pid) {
  std::error_code hidden;
  const fs::directory_iterator open(proc(pid, "fd"), hidden);
  return static_cast<std::size_t>(std::distance(begin(open), end(open)));
}

std::string output_of(const std::string& command) {
  std::string all;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  char piece[512];
  while (std::fgets(piece, sizeof piece, pipe) != nullptr) all += piece;
  ::pclose(pipe);
  return all;
}

/// The shared libraries that a program of the build needs.
std::string libraries_of(const std::string& program) {
  return output_of("ldd " + built_program(program));
}

class AdminProcess : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(kvd_.wait_ready()) << kvd_.log(); }
  bool is_alive() const {
    return ::kill(kvd_.pid(), 0) == 0 && status_of(kvd_.pid(), "State")[0] != 'Z';
  }

  const RuntimeFolder folder_;
  const KvdProcess kvd_{folder_};
};

// It has a chunk of the size 2^64 - 2, with which cpprestsdk ends any program that lets it read it,
// by std::bad_alloc.
TEST_F(AdminProcess, AChunkOfNegativeSizeIsRefusedAndEndsNothing) {
  ASSERT_TRUE(poll_until([&] { return kvd_.get("/readyz").status == 200; })) << kvd_.log();
  const pid_t admin = admin_of(kvd_);
  for (const std::uint16_t port : {kvd_.admin_port(), kvd_.metrics_port()}) {
    EXPECT_THAT(admin::http_exchange(port,
                                     "POST / HTTP/1.1\r\nHost: localhost\r\n"
                                     "Transfer-Encoding: chunked\r\n\r\n-2\r\n"),
                HasSubstr("411 "));
  }
  EXPECT_TRUE(poll_until([&] { return kvd_.get("/readyz").status == 200; })) << kvd_.log();
  EXPECT_EQ(admin_of(kvd_), admin) << "it was started again";
  EXPECT_TRUE(is_alive());
}

TEST_F(AdminProcess, AKilledOneIsStartedAgain) {
  pid_t last = 0;
  for (int deaths = 0; deaths < 2; ++deaths) {
    const pid_t admin = admin_of(kvd_);
    ASSERT_NE(admin, 0);
    ASSERT_NE(admin, last);
    ASSERT_EQ(::kill(admin, SIGKILL), 0);
    last = admin;
    ASSERT_TRUE(poll_until([&] {
      return admin_of(kvd_) != admin && kvd_.get("/readyz").status == 200;
    })) << kvd_.log();
  }
  EXPECT_THAT(kvd_.log(), HasSubstr("kvd-admin ended (signal 9)"));
  EXPECT_THAT(kvd_.get("/v1/events").body, HasSubstr("kvd-admin ended"));
  EXPECT_FALSE(kvd_.metrics().empty());
  EXPECT_TRUE(is_alive());
}

TEST_F(AdminProcess, SilentClientsBlindNeitherRestNorMetrics) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(admin::connected(kvd_.admin_port()));
    silent.push_back(admin::connected(kvd_.metrics_port()));
  }
  EXPECT_EQ(kvd_.get("/v1/status").status, 200);
  EXPECT_FALSE(kvd_.metrics().empty());
  EXPECT_LT(descriptors_of(admin_of(kvd_)), 256u);
  EXPECT_TRUE(is_alive());
}

TEST_F(AdminProcess, KvdItselfHasNoHttpInIt) {
  const std::string needed = libraries_of("kvd");
  ASSERT_THAT(needed, HasSubstr("libstdc++"));
  for (const char* library : {"libcpprest", "libcivetweb", "libprometheus", "libssl"}) {
    EXPECT_THAT(needed, Not(HasSubstr(library)));
  }
  EXPECT_THAT(libraries_of("kvd-admin"), HasSubstr("libcpprest"));
}

TEST_F(AdminProcess, ItCanDoLittle) {
  const pid_t admin = admin_of(kvd_);
  EXPECT_EQ(status_of(admin, "CapEff"), "0000000000000000");
  EXPECT_EQ(status_of(admin, "CapPrm"), "0000000000000000");
  EXPECT_EQ(status_of(admin, "NoNewPrivs"), "1");
  const std::string limits = text_of(proc(admin, "limits"));
  EXPECT_THAT(limits, HasSubstr("Max open files            256"));
  EXPECT_THAT(limits, HasSubstr("Max processes             0"));
  EXPECT_THAT(text_of(proc(admin, "environ")), Not(HasSubstr("HOME=")));
  if (::geteuid() == 0) {
    EXPECT_THAT(status_of(admin, "Uid"), testing::StartsWith("65534"));
  }
}

// nginx, HAProxy, wget and ab stand in front of it, as they ask by default.
TEST_F(AdminProcess, AnswersAsProxiesAndBalancersAsk) {
  for (const std::string at : {"/readyz", "/metrics"}) {
    const std::uint16_t port = at == "/metrics" ? kvd_.metrics_port() : kvd_.admin_port();
    const std::string whole = admin::http_exchange(port, "GET " + at + " HTTP/1.0\r\n\r\n");
    EXPECT_THAT(whole, StartsWith("HTTP/1.1 200 OK\r\n")) << at;
    EXPECT_THAT(whole, HasSubstr("Connection: close\r\n")) << at;
    const std::string head =
        admin::http_exchange(port, "HEAD " + at + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_THAT(head, StartsWith("HTTP/1.1 200 OK\r\n")) << at;
    EXPECT_THAT(head, EndsWith("\r\n\r\n")) << at;
    EXPECT_THAT(admin::http_exchange(port, "OPTIONS / HTTP/1.0\r\n\r\n"), HasSubstr(" 200 OK"));
  }
  const std::string stream = "GET /v1/overview HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n";
  const UniqueFd client = admin::connected(kvd_.admin_port());
  ASSERT_GT(::send(client.get(), stream.data(), stream.size(), MSG_NOSIGNAL), 0);
  std::string heard;
  char piece[4096];
  while (heard.find("\n\n") == std::string::npos) {
    const ssize_t count = ::recv(client.get(), piece, sizeof piece, 0);
    ASSERT_GT(count, 0) << heard;
    heard.append(piece, static_cast<std::size_t>(count));
  }
  EXPECT_THAT(heard, Not(HasSubstr("chunked")));
  EXPECT_THAT(heard, HasSubstr("\r\n\r\nevent: overview\ndata: {"));
}

TEST_F(AdminProcess, AContradictionIsAConflict) {
  std::string classes;
  for (int i = 0; i < 64; ++i)
    classes += (i > 0 ? "," : "") + ("\"c" + std::to_string(i)) + "\":{}";
  EXPECT_THAT(admin::http_exchange(kvd_.admin_port(),
                                   kvd_.patch_text("/v1/slo", R"({"classes": {)" + classes + "}}")),
              StartsWith("HTTP/1.1 409 Conflict\r\n"));
}

TEST_F(AdminProcess, EachChangeOfASettingIsToldAndItsOriginShown) {
  ASSERT_EQ(kvd_.patch("/v1/policy", R"({"rotation": {"policy": "fcfs"}})").status, 200);
  const std::string said = "rotation.policy: unified -> fcfs";
  const std::string line = "setting changed over REST, with the token: " + said;
  EXPECT_TRUE(poll_until([&] { return kvd_.log().find(line) != std::string::npos; }));
  EXPECT_THAT(kvd_.get("/v1/events").body, HasSubstr(said));
  EXPECT_THAT(kvd_.get("/v1/status").body, HasSubstr("\"live_settings\": 1"));
  std::string origins = kvd_.get("/v1/config/origins").body;
  EXPECT_THAT(origins, HasSubstr("\"rotation.policy\": \"live\""));
  EXPECT_THAT(origins, HasSubstr("\"rotation.policy\": \"unified\""));
  EXPECT_THAT(origins, HasSubstr("\"pool.hbm\": \"" + kvd_.config_file() + ":"));
  EXPECT_THAT(origins, HasSubstr("\"disk.path\": \"default\""));

  std::ofstream(kvd_.config_file(), std::ios::app) << "[slo.default]\ntbt = '50ms'\n";
  kvd_.signal(SIGHUP);
  ASSERT_TRUE(poll_until([&] {
    return kvd_.log().find("by SIGHUP: slo.default.tbt: 100ms -> 50ms") != std::string::npos;
  })) << kvd_.log();
  ASSERT_TRUE(poll_until([&] {
    origins = kvd_.get("/v1/config/origins").body;
    return origins.find("\"slo.default.tbt\": \"" + kvd_.config_file()) != std::string::npos;
  })) << origins;

  const std::string ctl = built_program("kvdctl") +
                          " --url http://127.0.0.1:" + std::to_string(kvd_.admin_port()) + " ";
  EXPECT_THAT(output_of(ctl + "config --print"),
              HasSubstr("[rotation]\npolicy = \"fcfs\"  # was unified\n"));
  EXPECT_THAT(output_of(ctl + "config"), HasSubstr("the next start has unified"));
  EXPECT_THAT(output_of(ctl + "status"), HasSubstr("1 changed live"));
  EXPECT_THAT(output_of(ctl + "doctor"), HasSubstr("1 settings were changed live"));
  EXPECT_THAT(output_of(ctl + "config --save " + kvd_.config_file()),
              HasSubstr("policy = \"fcfs\""));
  EXPECT_THAT(output_of(built_program("kvd") + " --print-config --config " + kvd_.config_file()),
              AllOf(HasSubstr("policy = \"fcfs\""), HasSubstr("tbt = \"50ms\"")));
  for (const char* command : {"engines 7", "requests --engine 7", "events --follow --engine 7"}) {
    EXPECT_THAT(output_of(ctl + command + " 2>&1"),
                HasSubstr("no engine 7 is attached; kvdctl engines lists those that are"));
  }
  EXPECT_THAT(output_of(ctl + "events --engine 0 2>&1"), Not(HasSubstr("no engine")));
  EXPECT_THAT(output_of(ctl + "stauts 2>&1"), HasSubstr("the nearest is status"));
  EXPECT_THAT(output_of(ctl + "status --jsn 2>&1"), HasSubstr("the nearest is --json"));
  EXPECT_THAT(output_of(ctl + "drain 3 --dedline=60 2>&1"), HasSubstr("nearest is --deadline"));
  EXPECT_THAT(output_of(ctl + "status --backwards 2>&1"), Not(HasSubstr("nearest")));
}

TEST_F(AdminProcess, WrongTokensAreCountedAndTold) {
  const std::string request =
      "PATCH /v1/slo HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer guess\r\n\r\n";
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(admin::http_exchange(kvd_.admin_port(), request), StartsWith("HTTP/1.1 401"));
  }
  EXPECT_TRUE(poll_until([&] {
    return kvd_.log().find("a wrong admin token was refused over REST, 1 so far") !=
           std::string::npos;
  }));
  EXPECT_THAT(kvd_.log(), Not(HasSubstr("2 so far"))) << "once a minute";
  EXPECT_TRUE(poll_until([&] { return kvd_.metric("kvd_admin_tokens_refused_total") == 3; }));
}

/// A kvd whose kvd-admin is in a stranger's hands, with kvd's own user.
struct HostileKvd {
  explicit HostileKvd(const std::string& mode)
      : script(folder.file("kvd-admin")), kvd(folder, settings(mode)) {}
  KvdSettings settings(const std::string& mode) const {
    std::ofstream(script) << "#!/bin/sh\nexec " << built_program("kvd-hostile-admin") << " " << mode
                          << " " << folder.path() << "\n";
    fs::permissions(script, fs::perms::owner_all);
    KvdSettings made;
    made.environment = {"KVD_ADMIN_PROGRAM=" + script, "KVD_ADMIN_USER="};
    return made;
  }
  bool says(const std::string& text) const {
    return poll_until([&] { return kvd.log().find(text) != std::string::npos; });
  }

  const RuntimeFolder folder;
  const std::string script;
  KvdProcess kvd;
};

TEST(AdminTakenOver, CanDoNothingThatItsTaskDoesNotNeed) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's library needs what is forbidden";
#endif
  const HostileKvd sut("attempts");
  ASSERT_TRUE(sut.says("all attempted")) << sut.kvd.log();
  EXPECT_THAT(sut.kvd.log(), HasSubstr("read the token: refused"));
  EXPECT_THAT(sut.kvd.log(), Not(HasSubstr(": possible")));
}

// The control of the test above: unconfined, the same attempts succeed.
TEST(AdminTakenOver, CouldDoMuchIfItHadGivenUpNothing) {
  const HostileKvd sut("free");
  ASSERT_TRUE(sut.says("all attempted")) << sut.kvd.log();
  for (const char* attempt : {"read the token", "write a file", "attach as an engine", "signal kvd",
                              "have kvd signalled", "start a process"}) {
    EXPECT_THAT(sut.kvd.log(), HasSubstr(std::string(attempt) + ": possible"));
  }
}

TEST(AdminTakenOver, HalfAQuestionDoesNotHoldKvdsEnd) {
  HostileKvd sut("half");
  ASSERT_TRUE(sut.says("ready: engines attach")) << sut.kvd.log();
  const SteadyClock clock;
  const TimePoint asked = clock.now();
  sut.kvd.signal(SIGTERM);
  EXPECT_EQ(sut.kvd.wait(), 0);
  EXPECT_LT(clock.now() - asked, std::chrono::seconds(6)) << "questions have 10 s";
}

TEST(AdminTakenOver, QuestionsHaveARate) {
  const HostileKvd sut("questions");
  ASSERT_TRUE(sut.says("answered in ")) << sut.kvd.log();
  const std::string log = sut.kvd.log();
  const double seconds = std::atof(log.c_str() + log.find("answered in ") + 12);
  EXPECT_GT(seconds, 1.8) << "2,000 answers, at a thousand a second and 50 at once";
}

TEST(AdminProcessEnd, ItEndsWithItsKvd) {
  const RuntimeFolder folder;
  for (const int signal : {SIGTERM, SIGKILL}) {
    KvdProcess kvd(folder);
    ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
    const pid_t admin = admin_of(kvd);
    ASSERT_NE(admin, 0);
    kvd.signal(signal);
    ASSERT_TRUE(kvd.wait().has_value());
    EXPECT_TRUE(poll_until([&] { return !fs::exists(proc(admin, "status")); }));
  }
}

}  // namespace
}  // namespace kvd::test
