// What kvd does when it is told to end while it starts, when its sockets are removed, and when it
// is started with odd descriptors: the program, as a process.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "ipc/vocabulary/unique_fd.hpp"
#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/free_port.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Somebody else's listener.
UniqueFd listening(std::uint16_t port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  EXPECT_EQ(::listen(socket.get(), 8), 0);
  return socket;
}

std::string config_of(const RuntimeFolder& folder, std::uint16_t metrics_port) {
  std::ofstream(folder.file("kvd.toml")) << toml_of(folder, {}, free_port(), metrics_port);
  return folder.file("kvd.toml");
}

/// Waits until somebody has opened the pipe and reads it.
UniqueFd writer_of(const std::string& pipe) {
  UniqueFd writer;
  EXPECT_TRUE(poll_until([&] {
    writer = UniqueFd(::open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    return writer.valid();
  }));
  return writer;
}

TEST(StopWhileStarting, EndsInOrderWhereAPortIsWaitedFor) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const RuntimeFolder folder;
    const std::uint16_t port = free_port();
    const UniqueFd other = listening(port);
    ChildProcess kvd({{built_program("kvd"), "--config", config_of(folder, port)}, {}});
    ASSERT_TRUE(kvd.wait_for_error("is in use: waiting")) << kvd.errors();
    kvd.signal(signal);
    EXPECT_EQ(kvd.wait(), 0) << kvd.errors();
    EXPECT_THAT(kvd.errors(), Not(HasSubstr("cannot listen"))) << "it went on waiting";
  }
}

TEST(StopWhileStarting, EndsByTheSignalWhereTheConfigurationDoesNotCome) {
  const RuntimeFolder folder;
  const std::string pipe = folder.file("kvd.toml");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ChildProcess kvd({{built_program("kvd"), "--config", pipe, "--check-config"}, {}});
  const UniqueFd writer = writer_of(pipe);
  kvd.signal(SIGTERM);
  EXPECT_EQ(kvd.wait(), 128 + SIGTERM) << "it is no valid configuration that was checked";
}

// By now its sockets exist.
TEST(StopWhileStarting, LeavesNoSocketsBehind) {
  const RuntimeFolder folder;
  const std::string slow = folder.file("slow-admin");
  std::ofstream(slow) << "#!/bin/sh\nexec sleep 1000\n";
  ::chmod(slow.c_str(), 0755);
  const std::string config = config_of(folder, free_port());
  ChildProcess kvd({{built_program("kvd"), "--config", config, "--admin.program", slow}, {}});
  const std::string attach = folder.file("attach.sock"), command = folder.file("command.sock");
  ASSERT_TRUE(poll_until([&] { return std::filesystem::exists(command); })) << kvd.errors();
  kvd.signal(SIGTERM);
  EXPECT_EQ(kvd.wait(), 0) << kvd.errors();
  EXPECT_FALSE(std::filesystem::exists(attach));
  EXPECT_FALSE(std::filesystem::exists(command));
}

TEST(StopWhileStarting, TakesTheHolderAlong) {
  const RuntimeFolder folder;
  const std::uint16_t port = free_port();
  const UniqueFd other = listening(port);
  ChildProcess holder({{built_program("kvd-holder"), "--", built_program("kvd"), "--config",
                        config_of(folder, port)},
                       {}});
  ASSERT_TRUE(holder.wait_for_error("is in use: waiting")) << holder.errors();
  holder.signal(SIGTERM);
  EXPECT_EQ(holder.wait(), 0) << holder.errors();
}

/// Like a container that does not see the host's processes: kvd is process 1 there.
const std::vector<std::string> kOwnProcesses = {"/usr/bin/unshare", "--pid", "--fork",
                                                "--mount-proc", "--kill-child"};

TEST(StopWhileStarting, EndsTheFirstProcessOfAContainerToo) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, for processes of its own";
  const RuntimeFolder folder;
  const std::uint16_t port = free_port();
  const UniqueFd other = listening(port);
  ChildCommand command{kOwnProcesses, {}};
  for (const std::string& word :
       {built_program("kvd"), std::string("--config"), config_of(folder, port)}) {
    command.arguments.push_back(word);
  }
  ChildProcess container(command);
  ASSERT_TRUE(container.wait_for_error("is in use: waiting")) << container.errors();
  ::kill(child_of(container.pid()), SIGTERM);
  EXPECT_EQ(container.wait(), 0) << container.errors();
}

TEST(UnseenEngines, AreToldOfAndServed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, for processes of its own";
  const RuntimeFolder folder;
  KvdSettings settings;
  settings.under = kOwnProcesses;
  const KvdProcess kvd(folder, settings);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  kvd_client::Options options;
  options.endpoint = kvd.endpoint();
  auto client = kvd_client::Client::open(options);
  ASSERT_TRUE(client.ok()) << client.error().message;
  EXPECT_TRUE(client->ping(kPatience).ok());
  EXPECT_THAT(kvd.get("/v1/events").body, HasSubstr("run kvd with hostPID"));
  ChildProcess doctor(
      {{built_program("kvdctl"), "doctor"},
       {"KVD_ADMIN_URL=http://127.0.0.1:" + std::to_string(kvd.admin_port()), "KVD_ENDPOINT"}});
  EXPECT_TRUE(doctor.wait_for_line("does not see the processes of engines"));
}

TEST(Reload, ThatDoesNotComeKeepsNobodyFromStoppingKvd) {
  const RuntimeFolder folder;
  KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  std::filesystem::remove(kvd.config_file());
  ASSERT_EQ(::mkfifo(kvd.config_file().c_str(), 0600), 0);
  kvd.signal(SIGHUP);
  const UniqueFd writer = writer_of(kvd.config_file());
  kvd.signal(SIGTERM);
  EXPECT_EQ(kvd.wait(), 0) << kvd.log();
}

bool can_attach(const KvdProcess& kvd) {
  kvd_client::Options options;
  options.endpoint = kvd.endpoint();
  return kvd_client::Client::open(options).ok();
}

TEST(SocketsGone, AreMadeAnewAndTold) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  kvd_client::Options options;
  options.endpoint = kvd.endpoint();
  auto before = kvd_client::Client::open(options);
  ASSERT_TRUE(before.ok());
  for (const char* gone : {"attach.sock", "command.sock"}) {
    ASSERT_TRUE(std::filesystem::remove(folder.file(gone)));
    EXPECT_TRUE(poll_until([&] { return std::filesystem::exists(folder.file(gone)); }));
    EXPECT_TRUE(poll_until([&] { return can_attach(kvd); })) << kvd.log();
  }
  EXPECT_TRUE(before->ping(kPatience).ok()) << "who was attached notices nothing";
  EXPECT_THAT(kvd.get("/v1/events").body, HasSubstr("it listens anew"));
}

// Removes the folder as a log-out does with /run/user/N. A file in its place stands for a fault
// that kvd cannot mend.
TEST(SocketsGone, ComeBackWithTheirFolderAndReadinessSaysWhereTheyCannot) {
  const RuntimeFolder parent;
  const std::string run = parent.file("run");
  const std::uint16_t port = free_port();
  std::ofstream(parent.file("kvd.toml")) << toml_of(parent, {}, port, free_port());
  ChildProcess kvd(
      {{built_program("kvd"), "--config", parent.file("kvd.toml"), "--paths.runtime_dir", run},
       {}});
  const auto readiness = [&] { return http_get(port, "/readyz"); };
  ASSERT_TRUE(poll_until([&] { return readiness().status == 200; })) << kvd.errors();
  std::filesystem::remove_all(run);
  std::ofstream(run) << "a file";
  ASSERT_TRUE(poll_until([&] { return readiness().status == 503; })) << kvd.errors();
  EXPECT_THAT(readiness().body, HasSubstr("no engine can attach: cannot open " + run));
  std::filesystem::remove(run);
  ASSERT_TRUE(poll_until([&] { return readiness().status == 200; })) << kvd.errors();
  kvd_client::Options options;
  options.endpoint = run + "/attach.sock";
  EXPECT_TRUE(poll_until([&] { return kvd_client::Client::open(options).ok(); })) << kvd.errors();
  EXPECT_TRUE(poll_until([&] { return std::filesystem::exists(run + "/admin.token"); }))
      << "changes need its text";
}

/// Starts the program by way of sh, which closes or fills descriptors first: words of sh, then
/// "$@".
ChildProcess under_sh(const std::string& words, std::vector<std::string> program) {
  std::vector<std::string> arguments{"/bin/sh", "-c", words, "sh"};
  arguments.insert(arguments.end(), program.begin(), program.end());
  return ChildProcess({arguments, {}});
}

TEST(StandardDescriptors, ThatAreClosedAreNotTakenByWhatKvdOpens) {
  const RuntimeFolder folder;
  const std::string config = config_of(folder, free_port());
  ChildProcess kvd =
      under_sh(R"(exec "$@" 0<&- 1>&- 2>&-)", {built_program("kvd"), "--config", config});
  kvd_client::Options options;
  options.endpoint = folder.file("attach.sock");
  ASSERT_TRUE(poll_until([&] { return kvd_client::Client::open(options).ok(); }));
  for (int fd = 0; fd <= 2; ++fd) {
    const std::string link = "/proc/" + std::to_string(kvd.pid()) + "/fd/" + std::to_string(fd);
    EXPECT_EQ(std::filesystem::read_symlink(link), "/dev/null");
  }
  kvd.signal(SIGTERM);
  EXPECT_EQ(kvd.wait(), 0);
}

}  // namespace
}  // namespace kvd::test
