/// kvd-holder [--keep N] [--] PROGRAM [ARGUMENT...]: runs kvd and keeps the descriptors that it
/// stores, so that the next one finds its memory again. It speaks what systemd speaks to a service
/// with FileDescriptorStoreMax, and takes its place where there is no systemd.
///
/// The program is started again when a signal ended it, or it ended with another status than 0 and
/// 2. The holder gives up after five ends in a row, each within two seconds of a start and before
/// the program was ready. It never gives up where a signal ended the program, or status 75, which
/// says that it can start later. After each end in a row it waits longer, two seconds at most.
/// SIGTERM and SIGINT are passed on and end both; SIGHUP is passed on; SIGUSR1 ends the program in
/// order and starts it again, with what is kept: an upgrade. Status: the program's. A holder that
/// is killed takes the program with it, in order. Source: kvd/DESIGN.md "Blocks that outlive kvd";
/// sd_listen_fds(3).
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "ipc/vocabulary/nearest.hpp"
#include "ipc/vocabulary/standard_streams.hpp"
#include "kvd/holder/kept.hpp"

namespace kvd::holder {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMostKept = 16384;
constexpr int kFirst = 3;  ///< number of the first descriptor that a program is given
constexpr int kMostFailures = 5;
constexpr std::chrono::seconds kSoon{2};
constexpr std::chrono::milliseconds kFirstPause{100};
constexpr std::chrono::milliseconds kLongestPause{2000};
constexpr int kNotYet = 75;  ///< Source: sysexits.h, EX_TEMPFAIL

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "kvd-holder: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

/// The holder's end of the socket pair that the program tells things on. The program inherits the
/// other end, and nobody else has it.
class Ear {
 public:
  /// A new pair, for the next program; its end.
  [[nodiscard]] UniqueFd open() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
    socket_ = UniqueFd(ends[0]);
    return UniqueFd(ends[1]);
  }
  /// -1 once the program has closed its end.
  [[nodiscard]] int fd() const { return socket_.get(); }

  /// Takes all that has come.
  void listen(Kept& kept) {
    while (socket_.valid() && take_one(kept)) {
    }
  }

 private:
  static constexpr std::size_t kMostAtOnce = 253;  ///< SCM_MAX_FD

  bool take_one(Kept& kept) {
    std::array<char, 4096> text;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostAtOnce * sizeof(int))> control{};
    iovec part{text.data(), text.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t size = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size < 0) return errno == EINTR;
    if (size == 0) socket_.reset();
    std::vector<UniqueFd> descriptors;
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
      if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t i = 0; i < (at->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
        descriptors.emplace_back(fd);
      }
    }
    const bool cut = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
    kept.take({text.data(), cut ? 0 : static_cast<std::size_t>(size)}, std::move(descriptors));
    return true;
  }

  UniqueFd socket_;
};

/// Makes the forked child the program, with the environment and the descriptors that it expects.
[[noreturn]] void become(char** program, const Kept& kept, const UniqueFd& mouth, pid_t holder) {
  // Without the holder nobody would keep what the program stores, or stop it. Changing users clears
  // this setting, so kvd sets it again.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != holder) ::_exit(127);
  ::setpgid(0, 0);  // a terminal's ^C is the holder's to pass on
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Above the numbers that are about to be given away.
  const int own = ::fcntl(mouth.get(), F_DUPFD_CLOEXEC, static_cast<int>(kept.most()) + kFirst + 1);
  std::string names;
  int next = kFirst;
  for (const auto& [name, fd] : kept.all()) {
    if (::dup2(fd.get(), next++) < 0) ::_exit(127);
    names += (names.empty() ? "" : ":") + name;
  }
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 1);
  };
  if (::dup2(own, next) < 0) ::_exit(127);
  set("NOTIFY_SOCKET", "fd:" + std::to_string(next));
  set("FDSTORE", std::to_string(kept.most()));
  set("LISTEN_PID", std::to_string(::getpid()));
  set("LISTEN_FDS", std::to_string(next - kFirst));
  set("LISTEN_FDNAMES", names);
  ::execvp(program[0], program);
  std::fprintf(stderr, "kvd-holder: %s: %s\n", program[0], std::strerror(errno));
  ::_exit(127);
}

/// -1: it has no process now.
pid_t start(char** program, const Kept& kept, Ear& ear) {
  const UniqueFd mouth = ear.open();
  const pid_t holder = ::getpid(), child = ::fork();
  if (child < 0) std::fprintf(stderr, "kvd-holder: fork: %s\n", std::strerror(errno));
  if (child == 0) become(program, kept, mouth, holder);
  return child;
}

int status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

class Holder {
 public:
  Holder(char** program, std::size_t most)
      : signals_(take_signals()), program_(program), kept_(most) {}

  int run() {
    begin();
    for (;;) {
      std::array<pollfd, 2> wait{{{ear_.fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}}};
      (void)::poll(wait.data(), wait.size(), patience());
      ear_.listen(kept_);
      signalfd_siginfo signal{};
      while (::read(signals_.get(), &signal, sizeof signal) == sizeof signal) {
        on_signal(static_cast<int>(signal.ssi_signo));
      }
      if (child_ < 0) {
        if (stopping_) return status_of(ended_);
        if (Clock::now() >= due_) begin();
        continue;
      }
      if (::waitpid(child_, &ended_, WNOHANG) != child_) continue;
      ear_.listen(kept_);  // what it said before it ended
      if (ends()) return status_of(ended_);
      child_ = -1;
    }
  }

 private:
  /// Signals are blocked before there is another thread that would receive them.
  static UniqueFd take_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int one : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD}) sigaddset(&signals, one);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    return UniqueFd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  void begin() {
    restarting_ = false;
    started_ = Clock::now();
    child_ = start(program_, kept_, ear_);
    if (child_ < 0) due_ = started_ + kSoon;
  }

  /// Milliseconds until there is something to do; -1: not known.
  [[nodiscard]] int patience() const {
    if (child_ >= 0) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due_ - Clock::now());
    return static_cast<int>(std::max<std::int64_t>(0, left.count()));
  }

  void on_signal(int signal) {
    if (signal == SIGTERM || signal == SIGINT) stopping_ = true;
    if (signal == SIGUSR1) restarting_ = true;
    if (signal != SIGCHLD && child_ >= 0) ::kill(child_, signal == SIGUSR1 ? SIGTERM : signal);
  }

  /// Whether the holder ends with it; else it is started again when that is due.
  bool ends() {
    due_ = Clock::now();
    const int status = status_of(ended_);
    if (stopping_) return true;
    if (std::exchange(restarting_, false)) return false;
    if (status == 0 || status == 2) return true;
    const bool served = kept_.take_ready();
    failures_ = served || due_ - started_ >= kSoon ? 0 : failures_ + 1;
    std::fprintf(stderr, "kvd-holder: %s ended with status %d; %zu descriptors are kept\n",
                 program_[0], status, kept_.all().size());
    const bool comes_back = WIFSIGNALED(ended_) || status == kNotYet;
    if (failures_ >= kMostFailures && !comes_back) return true;
    if (failures_ > 0) due_ += std::min(kLongestPause, kFirstPause * (1 << std::min(failures_, 8)));
    return false;
  }

  UniqueFd signals_;  // first: the others have threads
  char** program_;
  Kept kept_;
  Ear ear_;
  pid_t child_ = -1;  ///< -1: none runs, and one is started when that is due
  int ended_ = 0;     ///< how the program ended last, as waitpid() says
  Clock::time_point started_;
  Clock::time_point due_;  ///< when it is started again
  bool stopping_ = false, restarting_ = false;
  int failures_ = 0;
};

/// `why`: what is wrong; empty where help was asked for.
[[noreturn]] void usage(int status, const std::string& why = "") {
  if (!why.empty()) std::fprintf(stderr, "kvd-holder: %s\n", why.c_str());
  std::fputs(
      "usage: kvd-holder [--keep N] [--] PROGRAM [ARGUMENT...]\n\n"
      "Runs kvd (PROGRAM) and keeps up to N (16384) descriptors for it, so that what is cached is\n"
      "found again after a crash. SIGUSR1: ends kvd in order and starts it again (an "
      "upgrade).\n"
      "SIGTERM, SIGINT: end both, and the cache with them. SIGHUP is passed on.\n\n"
      "  --help, -h, --version, -V   print and exit\n\n"
      "Exit status: the program's, 128 + N where signal N ended it; 2 for wrong usage.\n",
      status == 0 ? stdout : stderr);
  std::exit(status_after_output("kvd-holder", status));
}

}  // namespace
}  // namespace kvd::holder

int main(int argc, char** argv) {
  using namespace kvd::holder;
  kvd::open_standard_descriptors();
  std::size_t most = kMostKept;
  int at = 1;
  for (; at < argc && argv[at][0] == '-'; ++at) {
    const std::string flag = argv[at];
    if (flag == "--help" || flag == "-h") usage(0);
    if (flag == "--version" || flag == "-V") {
      std::puts("kvd-holder " KVD_VERSION);
      return kvd::status_after_output("kvd-holder", 0);
    }
    if (flag == "--") {
      ++at;
      break;
    }
    const std::string meant = kvd::misspelt(flag, "option", {"--keep", "--help", "--version"});
    if (flag != "--keep") usage(2, meant.empty() ? flag + " is no option" : meant);
    const std::string_view text = at + 1 < argc ? argv[++at] : "";
    const auto [end, fault] = std::from_chars(text.begin(), text.end(), most);
    if (fault != std::errc() || end != text.end() || most == 0 || most > (1u << 20)) {
      usage(2, "--keep takes a number from 1 to 1048576, not \"" + std::string(text) + "\"");
    }
  }
  if (at >= argc) usage(2, "no PROGRAM is named, such as kvd");
  std::signal(SIGXFSZ, SIG_IGN);  // its log may be a file that has reached its size limit
  ::prctl(PR_SET_DUMPABLE, 0);    // it holds everything that is cached
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    const auto room = static_cast<std::size_t>(files.rlim_max) / 2;
    if (most + 16 > room) most = room - 16;
  }
  return Holder(argv + at, most).run();
}
