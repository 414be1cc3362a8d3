#include "tests/engines/child_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "ipc/vocabulary/check.hpp"

namespace kvd::test {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{60};  // far above what anything here needs

int milliseconds_until(SteadyClock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SteadyClock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

/// This runs in the forked child: it makes system calls only, and then exec.
[[noreturn]] void become(const std::vector<char*>& arguments, const std::vector<char*>& variables,
                         int output, int errors) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(output, STDOUT_FILENO);
  dup2(errors, STDERR_FILENO);
  for (char* variable : variables) {
    if (variable != nullptr) putenv(variable);
  }
  execv(arguments.front(), arguments.data());
  _exit(127);
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

ChildProcess::ChildProcess(const ChildCommand& command)
    : errors_(memfd_create("child-stderr", MFD_CLOEXEC)) {
  // With a memfd's own offset, two threads of the child would write over each other's lines.
  KVD_CHECK(fcntl(errors_.get(), F_SETFL, O_APPEND) == 0, "no append");
  std::array<int, 2> ends{};
  KVD_CHECK(pipe2(ends.data(), O_CLOEXEC) == 0, "no pipe");
  output_ = UniqueFd(ends[0]);
  const UniqueFd writer(ends[1]);
  auto argument_texts = command.arguments;
  auto variable_texts = command.environment;
  const auto arguments = pointers_to(argument_texts);
  const auto variables = pointers_to(variable_texts);
  pid_ = fork();
  KVD_CHECK(pid_ >= 0, "no fork");
  if (pid_ == 0) become(arguments, variables, writer.get(), errors_.get());
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ChildProcess::signal(int number) const { kill(pid_, number); }

std::optional<std::string> ChildProcess::wait_for_line(const std::string& text) {
  const auto deadline = SteadyClock::now() + kPatience;
  while (auto line = next_line(deadline)) {
    if (line->find(text) != std::string::npos) return line;
  }
  return std::nullopt;
}

bool ChildProcess::ended() const {
  siginfo_t child{};
  const auto id = static_cast<id_t>(pid_);
  return waitid(P_PID, id, &child, WEXITED | WNOHANG | WNOWAIT) != 0 || child.si_pid == pid_;
}

bool ChildProcess::wait_for_error(const std::string& text) {
  const auto deadline = SteadyClock::now() + kPatience;
  while (errors().find(text) == std::string::npos) {
    if (SteadyClock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

std::optional<std::string> ChildProcess::next_line(Deadline deadline) {
  while (true) {
    if (const auto end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    pollfd ready{output_.get(), POLLIN, 0};
    if (poll(&ready, 1, milliseconds_until(deadline)) <= 0) return std::nullopt;
    std::array<char, 4096> bytes;
    const ssize_t count = read(output_.get(), bytes.data(), bytes.size());
    if (count <= 0) return std::nullopt;
    unread_.append(bytes.data(), static_cast<std::size_t>(count));
  }
}

std::optional<int> ChildProcess::wait() {
  while (next_line(SteadyClock::now() + kPatience)) {  // a full pipe would stop the child
  }
  const UniqueFd handle(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  pollfd gone{handle.get(), POLLIN, 0};
  if (poll(&gone, 1, milliseconds_until(SteadyClock::now() + kPatience)) <= 0) return std::nullopt;
  int status = 0;
  KVD_CHECK(waitpid(pid_, &status, 0) == pid_, "child vanished");
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string ChildProcess::errors() const {
  std::string text;
  std::array<char, 4096> bytes;
  while (true) {
    const ssize_t count =
        pread(errors_.get(), bytes.data(), bytes.size(), static_cast<off_t>(text.size()));
    if (count <= 0) return text;
    text.append(bytes.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace kvd::test
