#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "kvd/admin/admin_server.hpp"
#include "tests/support/free_port.hpp"
#include "tests/support/runtime_folder.hpp"
#include "tests/unit/kvd/admin/fake_backend.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::ctl {
namespace {
using testing::AllOf;
using testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string text;  ///< stdout and stderr
};

/// The real program against a real server on a backend that only remembers.
class Kvdctl : public testing::Test {
 protected:
  Kvdctl() : token_file_(testing::TempDir() + "kvdctl_test_token_" + std::to_string(getpid())) {
    std::ofstream(token_file_) << admin::FakeBackend::kToken << "\n";
    config_.port = test::free_port();
  }
  ~Kvdctl() override { std::remove(token_file_.c_str()); }

  void SetUp() override {
    auto started = admin::AdminServer::start(config_, backend);
    ASSERT_TRUE(started.ok()) << started.error().to_string();
    server = std::move(*started);
  }
  [[nodiscard]] std::string url() const {
    return " --url http://127.0.0.1:" + std::to_string(config_.port);
  }
  [[nodiscard]] std::string token() const { return " --token-file " + token_file_; }

  static Outcome run(const std::string& arguments, const std::string& variables = "") {
    const std::string command = "env -u KVD_ADMIN_URL -u KVD_ADMIN_TOKEN_FILE -u XDG_RUNTIME_DIR " +
                                variables + " " KVDCTL_PATH " " + arguments + " 2>&1 </dev/null";
    Outcome out;
    std::FILE* pipe = ::popen(command.c_str(), "r");
    char piece[512];
    while (std::fgets(piece, sizeof piece, pipe) != nullptr) out.text += piece;
    const int status = ::pclose(pipe);
    out.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return out;
  }

  admin::FakeBackend backend;
  std::unique_ptr<admin::AdminServer> server;

 private:
  std::string token_file_;
  admin::AdminServer::Config config_;
};

TEST_F(Kvdctl, ShowsEveryDocumentAsTableAndAsJson) {
  for (const char* command :
       {"status", "pools", "engines", "requests", "plan", "policy", "slo", "quota"}) {
    const Outcome table = run(command + url());
    EXPECT_EQ(table.code, 0) << table.text;
    EXPECT_FALSE(table.text.starts_with("{")) << table.text;
    const Outcome json = run(std::string("--json ") + command + url());
    EXPECT_EQ(json.code, 0) << json.text;
    EXPECT_TRUE(json.text.starts_with("{")) << json.text;
  }
}

TEST_F(Kvdctl, TopPrintsOnceForScriptsAndFillsTerminalsOnly) {
  const Outcome once = run("top --once --interval 0.1" + url());
  EXPECT_EQ(once.code, 0) << once.text;
  EXPECT_THAT(once.text, AllOf(HasSubstr("kvd 0.1.0, host, up"), HasSubstr("hbm   [")));
  const Outcome json = run("top --json" + url());
  EXPECT_EQ(json.code, 0) << json.text;
  EXPECT_THAT(json.text, testing::StartsWith("{\"now_s\":"));
  const Outcome filled = run("top" + url());
  EXPECT_EQ(filled.code, 2);
  EXPECT_THAT(filled.text, HasSubstr("use top --once"));
  server.reset();
  EXPECT_EQ(run("top --once" + url()).code, 3);
  EXPECT_EQ(run("events --follow" + url()).code, 3);
}

TEST_F(Kvdctl, SetsQuotas) {
  const Outcome sut = run("quota set default.hbm.maximum_bytes=4194304" + url() + token());
  EXPECT_EQ(sut.code, 0) << sut.text;
  EXPECT_THAT(sut.text, AllOf(HasSubstr("default  all"), HasSubstr("4 MiB"), HasSubstr("none")));
  const Outcome refused = run("quota set nobody.hbm.maximum_bytes=1" + url() + token());
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.text, HasSubstr("no [[domain]]"));
}

TEST_F(Kvdctl, SetsAndShowsTheNewDocument) {
  const Outcome sut = run("policy set rotation.policy=fcfs rotation.alpha=2" + url() + token());
  EXPECT_EQ(sut.code, 0) << sut.text;
  EXPECT_THAT(sut.text, HasSubstr("rotation.policy    fcfs"));
  EXPECT_EQ(backend.tuning().rotation.alpha, 2);
  EXPECT_EQ(run("slo set default.tbt_s=0.05" + url() + token()).code, 0);
  EXPECT_EQ(backend.tuning().slo.at("default").tbt, std::chrono::milliseconds(50));
}

TEST_F(Kvdctl, RefusalsExitWithOneAndSayWhy) {
  const Outcome sut = run("policy set rotation.policy=magic" + url() + token());
  EXPECT_EQ(sut.code, 1);
  EXPECT_THAT(sut.text, AllOf(HasSubstr("/rotation/policy"), HasSubstr("lvf")));
  const Outcome without = run("policy set rotation.alpha=1 --token-file /dev/null" + url());
  EXPECT_EQ(without.code, 2) << without.text;
  EXPECT_EQ(backend.changes(), 0);
}

TEST_F(Kvdctl, WrongUsageExitsWithTwo) {
  EXPECT_EQ(run("").code, 2);
  EXPECT_EQ(run("nonsense").code, 2);
  EXPECT_EQ(run("policy set").code, 2);
  EXPECT_EQ(run("policy set alpha" + url()).code, 2);
  EXPECT_EQ(run("status --url ftp://x").code, 2);
  EXPECT_EQ(run("status set a=1" + url()).code, 2);
  EXPECT_EQ(run("events --since=-5m" + url()).code, 2);
  EXPECT_EQ(run("events --since=0" + url()).code, 0);
  EXPECT_EQ(run("drain node --deadline nan" + url() + token()).code, 2);
}

TEST_F(Kvdctl, AsksAtAnIpv6AddressWithTheTokenOfThisMachine) {
  const test::RuntimeFolder folder;
  std::filesystem::create_directory(folder.file("kvd"));
  std::ofstream(folder.file("kvd/admin.token")) << admin::FakeBackend::kToken << "\n";
  const std::string own = "XDG_RUNTIME_DIR=" + folder.path();
  const admin::AdminServer::Config config{"::1", test::free_port()};
  const auto six = admin::AdminServer::start(config, backend);
  ASSERT_TRUE(six.ok()) << six.error().to_string();
  const std::string set = "slo set default.tbt=50ms";
  const Outcome sut = run(set + " --url http://[::1]:" + std::to_string(config.port), own);
  EXPECT_EQ(sut.code, 0) << sut.text;
  const Outcome without = run("status --url http://[::1]", own);
  EXPECT_EQ(without.code, 3);
  EXPECT_THAT(without.text, HasSubstr("Failed to connect"))
      << "port 80 was asked, where nobody listens";
  std::string of_a_name = url();
  of_a_name.insert(of_a_name.find("127"), "localhost:x@");
  EXPECT_EQ(run(set + of_a_name, own).code, 1) << "a name before the host is no host";
}

TEST_F(Kvdctl, NoDaemonExitsWithThree) {
  server.reset();
  const Outcome sut = run("status" + url());
  EXPECT_EQ(sut.code, 3);
  EXPECT_THAT(sut.text, HasSubstr("is kvd running"));
}

TEST_F(Kvdctl, HelpExplainsItself) {
  const Outcome sut = run("--help");
  EXPECT_EQ(sut.code, 0);
  EXPECT_THAT(sut.text,
              AllOf(HasSubstr("Exit codes"), HasSubstr("policy set"), HasSubstr("--token-file")));
}

}  // namespace
}  // namespace kvd::ctl
