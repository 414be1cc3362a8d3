/// kvd-holder [--keep N] [--] PROGRAM [ARGUMENT...]: runs kvd and keeps the descriptors that it
/// stores, so that the next one finds its memory again. Speaks what systemd speaks to a service
/// with FileDescriptorStoreMax, and is for where there is no systemd.
///
/// The program is started again when a signal ended it, or it ended with another status than 0
/// and 2; after five ends in turn within two seconds of its start, without having been ready, no
/// more. SIGTERM and SIGINT are passed on and end both; SIGHUP is passed on; SIGUSR1 ends the
/// program in order and starts it again, with what is kept: an upgrade. Status: the program's. A
/// holder that is killed takes the program with it, in order.
/// Source: kvd/DESIGN.md "Blocks that outlive kvd"; sd_listen_fds(3).
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "kvd/holder/kept.hpp"

namespace kvd::holder {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMostKept = 16384;
constexpr int kFirst = 3;  ///< of the descriptors that a program is given
constexpr int kMostFailures = 5;
constexpr std::chrono::seconds kSoon{2};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "kvd-holder: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

/// The socket that the program tells things to; nobody can guess its name, and who else writes to
/// it is not listened to.
class Ear {
 public:
  Ear() : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const int on = 1;
    socklen_t size = sizeof address.sun_family;  // the kernel chooses an abstract name
    if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) fail("bind");
    if (::setsockopt(socket_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) fail("passcred");
    size = sizeof address;
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    name_ = "@" + std::string(address.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
  }
  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] const std::string& name() const { return name_; }

  /// Takes all that has come from the process.
  void listen(pid_t from, Kept& kept) const {
    while (take_one(from, kept)) {
    }
  }

 private:
  static constexpr std::size_t kMostAtOnce = 253;  ///< SCM_MAX_FD

  bool take_one(pid_t from, Kept& kept) const {
    std::array<char, 4096> text;
    alignas(cmsghdr)
        std::array<char, CMSG_SPACE(kMostAtOnce * sizeof(int)) + CMSG_SPACE(sizeof(ucred))>
            control{};
    iovec part{text.data(), text.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t size = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (size < 0) return errno == EINTR;
    ucred sender{};
    std::vector<UniqueFd> descriptors;
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
      if (at->cmsg_level != SOL_SOCKET) continue;
      if (at->cmsg_type == SCM_CREDENTIALS) std::memcpy(&sender, CMSG_DATA(at), sizeof sender);
      if (at->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t i = 0; i < (at->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
        descriptors.emplace_back(fd);
      }
    }
    const bool cut = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
    if (!cut && sender.pid == from) {
      kept.take({text.data(), static_cast<std::size_t>(size)}, std::move(descriptors));
    }
    return true;
  }

  UniqueFd socket_;
  std::string name_;
};

/// In the child: its environment and descriptors, and the program.
[[noreturn]] void become(char** program, const Kept& kept, const Ear& ear, pid_t holder) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // nobody would keep what it stores, or stop it
  if (::getppid() != holder) ::_exit(127);
  ::setpgid(0, 0);  // a terminal's ^C is the holder's to pass on
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  std::string names;
  int next = kFirst;
  for (const auto& [name, fd] : kept.all()) {
    if (::dup2(fd.get(), next++) < 0) ::_exit(127);
    names += (names.empty() ? "" : ":") + name;
  }
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 1);
  };
  set("NOTIFY_SOCKET", ear.name());
  set("FDSTORE", std::to_string(kept.most()));
  set("LISTEN_PID", std::to_string(::getpid()));
  set("LISTEN_FDS", std::to_string(next - kFirst));
  set("LISTEN_FDNAMES", names);
  ::execvp(program[0], program);
  std::fprintf(stderr, "kvd-holder: %s: %s\n", program[0], std::strerror(errno));
  ::_exit(127);
}

pid_t start(char** program, const Kept& kept, const Ear& ear) {
  const pid_t holder = ::getpid(), child = ::fork();
  if (child < 0) fail("fork");
  if (child == 0) become(program, kept, ear, holder);
  return child;
}

int status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

class Holder {
 public:
  Holder(char** program, std::size_t most) : program_(program), kept_(most) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int one : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD}) sigaddset(&signals, one);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    signals_ = UniqueFd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  int run() {
    begin();
    for (;;) {
      std::array<pollfd, 2> wait{{{ear_.fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}}};
      (void)::poll(wait.data(), wait.size(), -1);
      ear_.listen(child_, kept_);
      signalfd_siginfo signal{};
      while (::read(signals_.get(), &signal, sizeof signal) == sizeof signal) {
        on_signal(static_cast<int>(signal.ssi_signo));
      }
      int wait_status = 0;
      if (::waitpid(child_, &wait_status, WNOHANG) != child_) continue;
      ear_.listen(child_, kept_);  // what it said before it ended
      if (ends(status_of(wait_status))) return status_of(wait_status);
      begin();
    }
  }

 private:
  void begin() {
    restarting_ = false;
    started_ = Clock::now();
    child_ = start(program_, kept_, ear_);
  }

  void on_signal(int signal) {
    if (signal == SIGTERM || signal == SIGINT) stopping_ = true;
    if (signal == SIGUSR1) restarting_ = true;
    if (signal != SIGCHLD) ::kill(child_, signal == SIGUSR1 ? SIGTERM : signal);
  }

  /// Whether the holder ends with it; else it is to be started again.
  bool ends(int status) {
    if (stopping_) return true;
    if (restarting_) return false;
    if (status == 0 || status == 2) return true;
    const bool served = kept_.take_ready();
    failures_ = served || Clock::now() - started_ >= kSoon ? 0 : failures_ + 1;
    std::fprintf(stderr, "kvd-holder: %s ended with status %d; %zu descriptors are kept\n",
                 program_[0], status, kept_.all().size());
    if (failures_ >= kMostFailures) return true;
    if (failures_ > 1) std::this_thread::sleep_for(std::chrono::milliseconds(100 << failures_));
    return false;
  }

  char** program_;
  Kept kept_;
  Ear ear_;
  UniqueFd signals_;
  pid_t child_ = -1;
  Clock::time_point started_;
  bool stopping_ = false, restarting_ = false;
  int failures_ = 0;
};

[[noreturn]] void usage(int status) {
  std::fputs(
      "usage: kvd-holder [--keep N] [--] PROGRAM [ARGUMENT...]\n\n"
      "Runs kvd (PROGRAM) and keeps up to N (16384) descriptors for it, so that what is cached is\n"
      "found again after a crash. SIGUSR1: ends kvd in order and starts it again (an "
      "upgrade).\n",
      status == 0 ? stdout : stderr);
  std::exit(status);
}

}  // namespace
}  // namespace kvd::holder

int main(int argc, char** argv) {
  using namespace kvd::holder;
  std::size_t most = kMostKept;
  int at = 1;
  for (; at < argc && argv[at][0] == '-'; ++at) {
    const std::string flag = argv[at];
    if (flag == "--help") usage(0);
    if (flag == "--version") return std::puts("kvd-holder " KVD_VERSION), 0;
    if (flag == "--") {
      ++at;
      break;
    }
    if (flag != "--keep" || at + 1 == argc) usage(2);
    most = std::strtoul(argv[++at], nullptr, 10);
    if (most == 0 || most > (1u << 20)) usage(2);
  }
  if (at >= argc) usage(2);
  ::prctl(PR_SET_DUMPABLE, 0);  // it has all that is cached
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    const auto room = static_cast<std::size_t>(files.rlim_max) / 2;
    if (most + 16 > room) most = room - 16;
  }
  return Holder(argv + at, most).run();
}
