// What kvd refuses to start with: a clear sentence, an exit status, no trace left.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "ipc/vocabulary/unique_fd.hpp"
#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/free_port.hpp"
#include "tests/support/patience.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string written(const RuntimeFolder& folder, const std::string& toml) {
  std::ofstream(folder.file("test.toml")) << toml;
  return folder.file("test.toml");
}

TEST(Startup, CheckConfigNamesEveryFaultAtOnce) {
  const RuntimeFolder folder;
  const auto run = run_kvd({"--check-config", "--config",
                            written(folder,
                                    "[pool]\nhbn = \"1GiB\"\nslab = \"3MiB\"\n"
                                    "[rotation]\npolicy = \"nonesuch\"\n[admin]\nport = 0\n"
                                    "[engine]\nstep_timeout = \"soon\"\n")});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("pool.hbn"), HasSubstr("pool.slab"), HasSubstr("nonesuch"),
                    HasSubstr("admin.port"), HasSubstr("engine.step_timeout")));
}

TEST(Startup, CheckConfigAcceptsWhatTheTestsRunWith) {
  const RuntimeFolder folder;
  const auto run =
      run_kvd({"--check-config", "--config", written(folder, toml_of(folder, {}, 8470, 9470))});
  EXPECT_EQ(run.status, 0) << run.output;
}

TEST(Startup, AnUnknownKeyIsRefused) {
  const auto run = run_kvd({"--pool.hbn", "1GiB"});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output, HasSubstr("pool.hbn"));
}

// Pools that are large take minutes to populate.
TEST(Startup, WhatIsTakenOrCannotBeWrittenIsNamedBeforeMemoryIsTaken) {
  const RuntimeFolder folder, other_folder;
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const auto of = [](const RuntimeFolder& where, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{
        "--config", written(where, toml_of(where, {}, free_port(), free_port()))};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto run = run_kvd(arguments);
    EXPECT_EQ(run.status, 1);
    return run.output;
  };
  const auto early = testing::Not(HasSubstr("slabs of"));
  EXPECT_THAT(of(folder, {}), AllOf(HasSubstr("another process listens at"), early));
  EXPECT_THAT(of(other_folder, {"--admin.port", std::to_string(kvd.admin_port())}),
              AllOf(HasSubstr("admin.port"), HasSubstr(std::to_string(kvd.admin_port())), early));
  EXPECT_THAT(
      of(other_folder,
         {"--metrics.address", "127.0.0.1", "--metrics.port", std::to_string(kvd.metrics_port())}),
      AllOf(HasSubstr("metrics.port"), HasSubstr(std::to_string(kvd.metrics_port())), early));
  EXPECT_FALSE(std::filesystem::exists(other_folder.file("attach.sock")));
  EXPECT_THAT(of(other_folder, {"--disk.path", "/proc/version/none"}),
              AllOf(HasSubstr("set disk.path to"), early));
  EXPECT_THAT(of(other_folder, {"--paths.token_file", "/proc/none/token"}),
              AllOf(HasSubstr("paths.token_file"), early));
  EXPECT_EQ(kvd.get("/healthz").status, 200) << "the kvd that was there serves on";
}

TEST(Startup, AMissingKvdAdminIsNamed) {
  const RuntimeFolder folder;
  const auto run = run_kvd({"--config", written(folder, toml_of(folder, {}, 18470, 19470)),
                            "--admin.program", folder.file("none")});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.output, AllOf(HasSubstr(folder.file("none")), HasSubstr("admin.program")));
}

TEST(Startup, ATokenThatIsNotKvdsOwnIsRefused) {
  const RuntimeFolder folder;
  const std::string token = folder.file("admin.token");
  std::ofstream(token) << "0123456789abcdef\n";
  const auto refused = [&] {
    const auto run = run_kvd({"--config", written(folder, toml_of(folder, {}, 18470, 19470))});
    if (run.status != 1) return std::string("accepted");
    // The reason is the last line, below what the log said before it.
    return run.output.substr(run.output.rfind('\n', run.output.size() - 2) + 1);
  };
  ::chmod(token.c_str(), 0640);
  EXPECT_THAT(refused(), HasSubstr("chmod 600"));
  ::chmod(token.c_str(), 0600);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(token.c_str(), 65534, 65534), 0);
    EXPECT_THAT(refused(), HasSubstr("belongs to uid 65534"));
  }
  std::filesystem::remove(token);
  ASSERT_EQ(::mkfifo(token.c_str(), 0600), 0);
  EXPECT_THAT(refused(), HasSubstr("no plain file"));
}

TEST(Startup, APoolBeyondMemoryIsRefusedWithTheNumberAndTheRemedy) {
  const RuntimeFolder folder;
  const auto run = run_kvd(
      {"--config", written(folder, toml_of(folder, {.hbm = "8TiB", .dram = "1GiB", .slab = "1GiB"},
                                           8470, 9470))});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.output, AllOf(HasSubstr("8 TiB"), HasSubstr("lower pool.hbm")));
}

TEST(Startup, AMissingRuntimeFolderIsNamed) {
  const RuntimeFolder folder;
  const auto run = run_kvd({"--paths.runtime_dir", folder.file("no/such/folder"), "--pool.hbm",
                            "16MiB", "--pool.dram", "16MiB", "--pool.reserve", "0"});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.output, AllOf(HasSubstr("no/such/folder"), HasSubstr("paths.runtime_dir")));
}

/// A named pipe that is full and that nobody reads.
class FullPipe {
 public:
  explicit FullPipe(const std::string& path) {
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    both_ = UniqueFd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    const std::string junk(4096, '.');
    while (::write(both_.get(), junk.data(), junk.size()) > 0) {
    }
  }

 private:
  UniqueFd both_;
};

TEST(Startup, ServesThoughNobodyReadsItsLog) {
  const RuntimeFolder folder;
  const FullPipe pipe(folder.file("log"));
  const std::string config = written(folder, toml_of(folder, {}, free_port(), free_port()));
  ChildProcess kvd({{"/bin/sh", "-c", R"(exec "$0" --config "$1" 2> "$2")", built_program("kvd"),
                     config, folder.file("log")},
                    {}});
  kvd_client::Options options;
  options.endpoint = folder.file("attach.sock");
  auto client = kvd_client::Client::open(options);
  ASSERT_TRUE(poll_until([&] {
    if (!client.ok()) client = kvd_client::Client::open(options);
    return client.ok();
  }));
  EXPECT_TRUE(client->ping(kPatience).ok());
  kvd.signal(SIGTERM);
  EXPECT_EQ(kvd.wait(), 0);
}

TEST(Startup, KeepsNoCapabilityBeyondThoseThatSecurityNames) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  constexpr std::uint64_t kKept = 1ULL << CAP_KILL | 1ULL << CAP_IPC_LOCK | 1ULL << CAP_SYS_NICE |
                                  1ULL << CAP_SETUID | 1ULL << CAP_SETGID;
  const std::filesystem::path threads = "/proc/" + std::to_string(kvd.pid()) + "/task";
  for (const auto& thread : std::filesystem::directory_iterator(threads)) {
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with("Cap")) continue;
      const std::uint64_t set = std::stoull(line.substr(line.find(':') + 1), nullptr, 16);
      const bool may_be_bounding = line.starts_with("CapBnd") && ::geteuid() != 0;
      EXPECT_TRUE(may_be_bounding || (set & ~kKept) == 0) << thread.path() << " " << line;
    }
  }
}

TEST(Startup, ALivingDaemonsSocketIsNotTaken) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const auto second = run_kvd({"--config", written(folder, toml_of(folder, {}, 1, 2))});
  EXPECT_EQ(second.status, 1);
  EXPECT_THAT(second.output, HasSubstr("attach.sock"));
  EXPECT_EQ(kvd.get("/readyz").status, 200);
}

}  // namespace
}  // namespace kvd::test
