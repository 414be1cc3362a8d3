#include "kvd/daemon/admin_child.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <pwd.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <string_view>
#include <vector>

extern char** environ;

namespace kvd::daemon {
namespace {

namespace link = admin::link;

/// A start takes milliseconds, but more than 10 s where dozens of other threads want each CPU. A
/// process that ends is noticed at once.
constexpr Nanoseconds kStart = std::chrono::seconds(60);
constexpr Nanoseconds kStartAgain = std::chrono::seconds(10);  ///< the pause before another try
constexpr Nanoseconds kShortest = std::chrono::milliseconds(100);
constexpr Nanoseconds kLongest = std::chrono::seconds(5);
constexpr Nanoseconds kHealthy = std::chrono::seconds(10);  ///< a life that makes one forget

/// The variables that a program needs to start at all. The rest of kvd's environment is not passed
/// on.
std::vector<char*> small_environment() {
  constexpr std::array<std::string_view, 6> kKept = {
      "PATH=",         "LD_LIBRARY_PATH=", "ASAN_OPTIONS=",
      "LSAN_OPTIONS=", "UBSAN_OPTIONS=",   "TSAN_OPTIONS="};
  std::vector<char*> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (std::any_of(kKept.begin(), kKept.end(),
                    [&](std::string_view name) { return text.starts_with(name); })) {
      kept.push_back(*variable);
    }
  }
  kept.push_back(nullptr);
  return kept;
}

constexpr std::uint32_t kChangeUser = 1u << CAP_SETUID | 1u << CAP_SETGID;

/// Lets the program that is run next become another user, whichever user kvd is.
void pass_on_change_user() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{};
  ::syscall(SYS_capget, &header, sets);
  sets[0].inheritable |= sets[0].permitted & kChangeUser;
  ::syscall(SYS_capset, &header, sets);
  for (const int capability : {CAP_SETUID, CAP_SETGID}) {
    ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, static_cast<unsigned long>(capability), 0, 0);
  }
}

/// This runs in the forked child of a process with threads, so it makes system calls only.
[[noreturn]] void become(const char* program, char* const* environment, int socket,
                         bool changes_user) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (changes_user) pass_on_change_user();
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (socket == link::kDescriptor) {
    ::fcntl(socket, F_SETFD, 0);
  } else {
    ::dup2(socket, link::kDescriptor);
  }
  const int nothing = ::open("/dev/null", O_RDWR);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  ::syscall(SYS_close_range, link::kDescriptor + 1, ~0u, 0);
  const char* arguments[] = {"kvd-admin", nullptr};
  ::execve(program, const_cast<char* const*>(arguments), environment);
  ::_exit(127);
}

bool may_change_user() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{};
  return ::syscall(SYS_capget, &header, sets) == 0 &&
         (sets[0].effective & kChangeUser) == kChangeUser;
}

/// A name or a number.
Status set_user(const std::string& user, link::Begin& begin) {
  if (user.empty() || !may_change_user()) return {};
  begin.changes_user = 1;
  const char* end = user.data() + user.size();
  if (std::from_chars(user.data(), end, begin.uid).ptr == end) {
    begin.gid = begin.uid;
    return {};
  }
  if (const passwd* found = ::getpwnam(user.c_str())) {
    begin.uid = found->pw_uid, begin.gid = found->pw_gid;
    return {};
  }
  if (user == "nobody") {  // where there is no list of users
    begin.uid = begin.gid = 65534;
    return {};
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "admin.user: there is no user \"" + user + "\"; name one, or give a number");
}

}  // namespace

std::string default_admin_program() {
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  const std::string own(path.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return own.substr(0, own.rfind('/') + 1) + "kvd-admin";
}

Result<std::unique_ptr<AdminChild>> AdminChild::start(const Config& config, AdminDesk desk,
                                                      Tell tell) {
  link::Begin begin;
  begin.admin_address = link::to_text<sizeof(link::Text)>(config.admin_address);
  begin.metrics_address = link::to_text<sizeof(link::Text)>(config.metrics_address);
  begin.admin_port = config.admin_port;
  begin.metrics_port = config.metrics_port;
  KVD_TRY(set_user(config.user, begin));
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) {
    return make_error(ErrorCode::kUnavailable, "no file descriptor left: raise RLIMIT_NOFILE");
  }
  std::unique_ptr<AdminChild> child(
      new AdminChild(config.program, begin, std::move(desk), std::move(tell), std::move(stop)));
  KVD_TRY(child->spawn(kStart));
  child->thread_ = std::thread([&self = *child] { self.run(); });
  return child;
}

AdminChild::AdminChild(std::string program, const link::Begin& begin, AdminDesk desk, Tell tell,
                       UniqueFd stop)
    : program_(std::move(program)),
      begin_(begin),
      desk_(std::move(desk)),
      tell_(std::move(tell)),
      stop_(std::move(stop)) {}

AdminChild::~AdminChild() {
  (void)::eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
  reap();
}

Status AdminChild::spawn(Nanoseconds patience) {
  KVD_ASSIGN_OR_RETURN(auto ends, link::Channel::pair());
  const std::vector<char*> environment = small_environment();
  pid_ = ::fork();
  if (pid_ == 0) {
    become(program_.c_str(), environment.data(), ends.second.get(), begin_.changes_user != 0);
  }
  if (pid_ < 0) {
    return make_error(ErrorCode::kUnavailable,
                      std::string("cannot start ") + program_ + ": " + std::strerror(errno));
  }
  ends.second.reset();
  channel_.emplace(std::move(ends.first), stop_.get());
  Status greeted = greet(patience);
  if (!greeted.ok()) reap();
  return greeted;
}

Status AdminChild::greet(Nanoseconds patience) {
  const auto unusable = [&](const Error& error) {
    return make_error(ErrorCode::kUnavailable, "cannot run " + program_ + " (" + error.message +
                                                   "): install it beside kvd, or name it in "
                                                   "admin.program");
  };
  const Status sent =
      channel_->send(link::Type::kBegin, std::as_bytes(std::span(&begin_, 1)), patience);
  if (!sent.ok()) return unusable(sent.error());
  const auto message = channel_->receive(Bytes(sizeof(link::Verdict)), patience);
  if (!message.ok()) return unusable(message.error());
  std::span<const std::byte> body = message->body;
  const auto verdict = link::take<link::Verdict>(body);
  if (!verdict || message->type != link::Type::kStarted) {
    return unusable(make_error(ErrorCode::kInvalidArgument, "it is of another build"));
  }
  if (verdict->code == 0) {
    const std::string_view warning = link::text_of(verdict->message);
    if (!warning.empty()) tell_(std::string(warning));
    return {};
  }
  return make_error(static_cast<ErrorCode>(verdict->code),
                    std::string(link::text_of(verdict->message)));
}

void AdminChild::run() {
  Nanoseconds wait = kShortest;
  for (;;) {
    const TimePoint began = clock_.now();
    serve();
    if (stopped(Nanoseconds(0))) return;
    if (clock_.now() - began > kHealthy) wait = kShortest;
    tell_("kvd-admin ended (" + reap() + ") and is started again");
    Status started;
    do {
      if (stopped(wait)) return;
      wait = std::min(wait * 2, kLongest);
      started = spawn(kStartAgain);
      if (!started.ok()) tell_("kvd-admin could not be started again: " + started.error().message);
    } while (!started.ok());
  }
}

void AdminChild::serve() {
  for (;;) {
    std::array<pollfd, 2> entries = {{{channel_->fd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
    if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    if (entries[1].revents != 0) return;
    if (entries[0].revents != 0 && !desk_.serve(*channel_).ok()) return;
  }
}

bool AdminChild::stopped(Nanoseconds timeout) const {
  pollfd entry{stop_.get(), POLLIN, 0};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  return ::poll(&entry, 1, static_cast<int>(ms)) > 0;
}

// A process that does not end with its link is no longer the one that was started.
std::string AdminChild::reap() {
  channel_.reset();
  if (pid_ <= 0) return "";
  constexpr int kTries = 100;
  int status = 0;
  pid_t ended = 0;
  for (int tries = 0; tries < kTries && ended == 0; ++tries) {
    ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended == 0) (void)::poll(nullptr, 0, 1);
  }
  if (ended == 0) {
    ::kill(pid_, SIGKILL);
    (void)::waitpid(pid_, &status, 0);
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                             : "exit status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace kvd::daemon
