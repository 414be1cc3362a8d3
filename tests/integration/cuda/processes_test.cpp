#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/cuda/channel.hpp"
#include "tests/integration/cuda/pattern.hpp"

namespace kvd::tests {
namespace {

/// A program at the other end of a socket; killed with the test.
class Process {
 public:
  /// `environment` is only for this process: "FAKECUDA_X=1".
  explicit Process(const char* program, const std::vector<std::string>& environment = {}) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = UniqueFd(ends[0]);
    const UniqueFd theirs(ends[1]);
    std::vector<char*> variables;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      variables.push_back(*variable);
    }
    for (const std::string& variable : environment) {
      variables.push_back(const_cast<char*>(variable.c_str()));
    }
    variables.push_back(nullptr);
    const std::string number = std::to_string(theirs.get());
    const char* arguments[] = {program, number.c_str(), nullptr};
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::fcntl(theirs.get(), F_SETFD, 0);
    ::execve(program, const_cast<char**>(arguments), variables.data());
    ::_exit(127);
  }
  ~Process() { kill(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// SIGKILL, and gone when this returns.
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
  }

  Message receive() const { return receive_message(socket_.get()); }
  /// The answer to a command.
  std::string ask(const std::string& text, const std::vector<int>& fds = {}) const {
    EXPECT_TRUE(send_message(socket_.get(), text, fds)) << "the process is gone";
    return receive().text;
  }

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
};

/// The path of a program: as built, or where the environment says it was moved to.
const char* program(const char* variable, const char* built) {
  const char* moved = std::getenv(variable);
  return moved != nullptr ? moved : built;
}
const char* daemon_program() { return program("KVDTEST_CUDA_DAEMON", KVD_CUDA_DAEMON); }
const char* engine_program() { return program("KVDTEST_CUDA_ENGINE", KVD_CUDA_ENGINE); }

/// A daemon, and the descriptors it gave out.
struct Daemon {
  explicit Daemon(const std::vector<std::string>& environment = {})
      : process(std::make_unique<Process>(daemon_program(), environment)) {
    Message first = process->receive();
    EXPECT_EQ(first.text, "ready");
    EXPECT_EQ(first.fds.size(), 2u);
    fds = std::move(first.fds);
    fds.resize(2);
  }
  std::string ask(const std::string& text, const std::vector<int>& with = {}) const {
    return process->ask(text, with);
  }

  std::unique_ptr<Process> process;
  std::vector<UniqueFd> fds;  // hbm, dram
};

struct Engine : Process {
  explicit Engine(const Daemon& daemon) : Process(engine_program()) {
    EXPECT_EQ(ask("hbm", {daemon.fds[0].get()}), "ready");
  }
};

struct SharedPage {
  SharedPage() : fd(::memfd_create("fences", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(fd.get(), kPageBytes), 0);
    words = static_cast<FencePage*>(
        ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  }
  ~SharedPage() { ::munmap(words, kPageBytes); }
  void store(std::uint64_t& word, std::uint64_t value) {
    __atomic_store_n(&word, value, __ATOMIC_RELEASE);
  }
  std::uint64_t fence() const { return __atomic_load_n(&words->fence, __ATOMIC_ACQUIRE); }

  UniqueFd fd;
  FencePage* words;
};

TEST(CudaProcesses, WhatOneWritesTheOtherReads) {
  const Daemon daemon;
  const Engine engine(daemon);
  EXPECT_EQ(engine.ask("check 1"), "right");
  EXPECT_EQ(engine.ask("check 2"), "wrong") << "corruption control";
  EXPECT_EQ(daemon.ask("load 2"), "done");
  EXPECT_EQ(engine.ask("check 2"), "right");
  EXPECT_EQ(engine.ask("write 3"), "right");
  EXPECT_EQ(daemon.ask("save"), "done");
  Engine other(daemon);
  EXPECT_EQ(other.ask("check 3"), "right");
}

TEST(CudaProcesses, AnEnginesMemoryOutlivesTheDaemon) {
  Daemon daemon;
  const Engine engine(daemon);
  daemon.fds.clear();
  daemon.process->kill();
  EXPECT_EQ(engine.ask("check 1"), "right");
  EXPECT_EQ(engine.ask("write 4"), "right");
  EXPECT_EQ(engine.ask("check 4"), "right");
}

TEST(CudaProcesses, ADaemonOutlivesItsEngineAndGetsTheMemoryBack) {
  // Room for one slab beside what the backend needs for itself.
  Daemon daemon({"FAKECUDA_HBM_BYTES=" + std::to_string(kSlabBytes * 3 / 2)});
  auto engine = std::make_unique<Engine>(daemon);
  daemon.fds.clear();
  EXPECT_EQ(engine->ask("check 1"), "right");
  EXPECT_EQ(daemon.ask("load 5"), "done");
  EXPECT_NE(daemon.ask("recreate").find("OutOfMemory"), std::string::npos)
      << "the engine still maps the first slab";
  engine->kill();
  EXPECT_EQ(daemon.ask("recreate"), "done");
  EXPECT_EQ(daemon.ask("load 6"), "done");
}

TEST(CudaProcesses, ARestartedDaemonFindsItsSlabsInTheDescriptorsThatWereKept) {
  Daemon daemon;
  EXPECT_EQ(daemon.ask("load 7"), "done");
  daemon.process->kill();
  const Process next(engine_program());
  ASSERT_EQ(next.ask("hbm dram", {daemon.fds[0].get(), daemon.fds[1].get()}), "ready");
  EXPECT_EQ(next.ask("check 7"), "right");
  EXPECT_EQ(next.ask("check-dram 7"), "right");
  EXPECT_EQ(next.ask("check-dram 1"), "wrong") << "corruption control";
}

TEST(CudaProcesses, ADescriptorOfAnotherKindIsNoSlab) {
  const Daemon daemon;
  const Process engine(engine_program());
  EXPECT_NE(engine.ask("hbm", {daemon.fds[1].get()}).find("InvalidArgument"), std::string::npos);
}

TEST(CudaProcesses, ACopyThatStandsStillFailsItsDaemonAndNoEngine) {
  const SharedPage page;
  const Daemon daemon({"FAKECUDA_STALL=d2h"});
  const Engine engine(daemon);
  ASSERT_EQ(daemon.ask("page", {page.fd.get()}), "done");
  EXPECT_EQ(daemon.ask("load 2"), "done");
  EXPECT_EQ(page.fence(), 1u);
  EXPECT_NE(daemon.ask("save").find("DeviceError"), std::string::npos);
  EXPECT_NE(daemon.ask("load 3").find("DeviceError"), std::string::npos) << "lost for good";
  EXPECT_EQ(page.fence(), 1u) << "a failed copy has no fence";
  EXPECT_EQ(engine.ask("check 2"), "right");
}

TEST(CudaProcesses, AStreamWaitsForTheDaemonsFenceAndACpuStoreReleasesItWhenTheDaemonIsDead) {
  SharedPage page;
  Daemon daemon;
  const Engine engine(daemon);
  ASSERT_EQ(daemon.ask("page", {page.fd.get()}), "done");
  ASSERT_EQ(engine.ask("page", {page.fd.get()}), "right");
  constexpr auto kNotReady = "error 600";

  EXPECT_EQ(engine.ask("wait 1"), "right");
  EXPECT_EQ(engine.ask("passed?"), kNotReady);
  EXPECT_EQ(daemon.ask("load 2"), "done");
  EXPECT_EQ(engine.ask("join"), "right") << "released by the daemon's copy engine";
  EXPECT_EQ(page.fence(), 1u);

  EXPECT_EQ(engine.ask("wait 2"), "right");
  daemon.process->kill();
  EXPECT_EQ(engine.ask("passed?"), kNotReady) << "the dead release nobody";
  page.store(page.words->poison, 1);
  page.store(page.words->fence, 2);
  EXPECT_EQ(engine.ask("join"), "right");
  EXPECT_EQ(engine.ask("check 2"), "right") << "no error was left in the context";
}

}  // namespace
}  // namespace kvd::tests
