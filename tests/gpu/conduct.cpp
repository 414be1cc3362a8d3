#include "tests/gpu/conduct.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>

#include "tests/gpu/lab.hpp"
#include "tests/gpu/peers/reap.hpp"

namespace kvd::gpu {
namespace {

constexpr double kDying = 5;  // s from SIGKILL, or the last line, to the end of a process
constexpr int kMostDevices = 64;

pid_t start(const Experiment& experiment, const Conduct& how, int fd) {
  const std::string number = std::to_string(fd);
  const char* arguments[] = {"kvd-gpu-report",
                             "--experiment",
                             experiment.id,
                             number.c_str(),
                             "--suites",
                             how.suites.c_str(),
                             how.quick ? "--quick" : nullptr,
                             nullptr};
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::fcntl(fd, F_SETFD, 0);
  ::execv(self_program(), const_cast<char**>(arguments));
  ::_exit(127);
}

/// Reads what the child writes until it closes its end or the deadline comes; true when it closed.
bool read_until(int fd, double deadline, std::string& text) {
  for (;;) {
    const double left = deadline - now_s();
    if (left <= 0) return false;
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(left * 1000) + 1) != 1) continue;
    char buffer[4096];
    const ssize_t bytes = ::read(fd, buffer, sizeof buffer);
    if (bytes <= 0) return true;
    text.append(buffer, static_cast<std::size_t>(bytes));
  }
}

std::string how_it_ended(bool closed, double limit_s, std::optional<int> status) {
  std::string text =
      closed ? "" : "ended at its limit of " + std::to_string(std::lround(limit_s)) + " s";
  if (!status)
    return text + (closed ? "" : "; ") + "its process is stuck in the kernel, left behind";
  if (!closed) return text;
  if (WIFSIGNALED(*status)) return "ended by signal " + std::to_string(WTERMSIG(*status));
  return "ended with status " + std::to_string(WEXITSTATUS(*status));
}

}  // namespace

Outcome conduct(const Experiment& experiment, const Conduct& how, double limit_s) {
  Outcome outcome = outcome_of(experiment, "");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    outcome.state = State::kFailed;
    outcome.reason = "no pipe: raise the limit of descriptors";
    return outcome;
  }
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const double started = now_s();
  const pid_t pid = start(experiment, how, write_end.get());
  write_end.reset();
  std::string lines;
  const bool closed = pid > 0 && read_until(read_end.get(), started + limit_s, lines);
  // Its own peers die with it.
  if (!closed && pid > 0) ::kill(pid, SIGKILL);
  const auto status = pid > 0 ? reap(pid, kDying) : std::nullopt;
  outcome.seconds = now_s() - started;
  read_lines(lines, outcome, how_it_ended(closed, limit_s, status));
  return outcome;
}

void Holder::hold() {
  for (int minor = 0; minor < kMostDevices; ++minor) {
    const std::string device = "/dev/nvidia" + std::to_string(minor);
    UniqueFd fd(::open(device.c_str(), O_RDWR | O_CLOEXEC));
    if (fd.valid()) devices_.push_back(std::move(fd));
  }
}

}  // namespace kvd::gpu
