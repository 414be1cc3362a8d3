// kvd-admin as a process of its own: what strangers send to REST and the metrics does not reach
// kvd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

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

/// The shared libraries that a program of the build needs.
std::string libraries_of(const std::string& program) {
  std::string all;
  std::FILE* pipe = ::popen(("ldd " + built_program(program)).c_str(), "r");
  char piece[512];
  while (std::fgets(piece, sizeof piece, pipe) != nullptr) all += piece;
  ::pclose(pipe);
  return all;
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

// Its chunk of the size 2^64 - 2 would end whatever lets cpprestsdk read it, by std::bad_alloc.
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
