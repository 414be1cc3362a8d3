#include "kvd/admin/sandbox.hpp"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <vector>

namespace kvd::admin::sandbox {
namespace {

// Debian's headers are too old for these. The kernel's version says whether it knows them.
struct Ruleset {
  std::uint64_t files = 0;
  std::uint64_t ports = 0;
  std::uint64_t scopes = 0;
};
struct PortRule {
  std::uint64_t allowed = 0;
  std::uint64_t port = 0;
};
constexpr int kPortRule = 2;
constexpr std::uint64_t kBind = 1u << 0, kConnect = 1u << 1;
constexpr std::uint64_t kScopes = 1u << 0 | 1u << 1;  // abstract sockets, signals

struct Known {
  long version;
  unsigned files;  ///< rights on files that it knows: bits from the lowest
  bool ports;
  bool scopes;
};
constexpr Known kKnown[] = {{6, 16, true, true},   {5, 16, true, false},  {4, 15, true, false},
                            {3, 15, false, false}, {2, 14, false, false}, {1, 13, false, false}};

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "name the architecture as seccomp does"
#endif

constexpr int kAlways[] = {
    // memory, time and threads
    SYS_brk,
    SYS_mmap,
    SYS_munmap,
    SYS_mremap,
    SYS_mprotect,
    SYS_madvise,
    SYS_membarrier,
    SYS_clock_gettime,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_gettimeofday,
    SYS_getrandom,
    SYS_futex,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_gettid,
    SYS_getpid,
    SYS_getuid,
    SYS_geteuid,
    SYS_restart_syscall,
    SYS_exit,
    SYS_exit_group,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_sysinfo,
    SYS_uname,
    // what is open
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_close,
    SYS_fstat,
    SYS_lseek,
    SYS_recvfrom,
    SYS_shutdown,
    SYS_setsockopt,
    SYS_getsockopt,
    SYS_getsockname,
    SYS_getpeername,
    SYS_accept4,
    SYS_ppoll,
    SYS_epoll_pwait,
    SYS_epoll_ctl,
    SYS_epoll_create1,
    SYS_eventfd2,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_pipe2,
#ifdef SYS_poll
    SYS_poll,
    SYS_epoll_wait,
    SYS_time,
#endif
};
constexpr int kToStart[] = {SYS_socket,          SYS_bind,      SYS_listen,
                            SYS_clone,           SYS_clone3,    SYS_prctl,
                            SYS_set_tid_address, SYS_prlimit64, SYS_seccomp};

using Program = std::vector<sock_filter>;

void add(Program& program, std::uint16_t code, std::uint32_t k, std::uint8_t yes = 0,
         std::uint8_t no = 0) {
  program.push_back({code, yes, no, k});
}

void load(Program& program, std::size_t offset) {
  add(program, BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset));
}

/// The low half of an argument; x86-64 and aarch64 store it first.
std::size_t argument(std::size_t number) {
  return offsetof(seccomp_data, args) + number * sizeof(std::uint64_t);
}

void give(Program& program, std::uint32_t verdict) { add(program, BPF_RET | BPF_K, verdict); }

/// Allows the call where an argument has a value, which takes 64 bits where it is `wide`. Loads the
/// call's number again.
void allow_where(Program& program, int call, std::size_t number, std::uint32_t value,
                 bool wide = false) {
  add(program, BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, wide ? 6 : 4);
  load(program, argument(number));
  add(program, BPF_JMP | BPF_JEQ | BPF_K, value, 0, wide ? 3 : 1);
  if (wide) {
    load(program, argument(number) + 4);
    add(program, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1);
  }
  give(program, SECCOMP_RET_ALLOW);
  load(program, offsetof(seccomp_data, nr));
}

Program program_of(Calls calls) {
  Program program;
  load(program, offsetof(seccomp_data, arch));
  add(program, BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0);
  give(program, SECCOMP_RET_KILL_PROCESS);
  load(program, offsetof(seccomp_data, nr));
  const auto allow = [&](int call) {
    add(program, BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1);
    give(program, SECCOMP_RET_ALLOW);
  };
  for (const int call : kAlways) allow(call);
  allow_where(program, SYS_sendto, 4, 0, true);  // sent to the peer, not to an address
  // Not F_SETOWN, which has the kernel signal another process.
  for (const int command : {F_GETFD, F_SETFD, F_GETFL, F_SETFL}) {
    allow_where(program, SYS_fcntl, 1, static_cast<std::uint32_t>(command));
  }
  allow_where(program, SYS_tgkill, 0, static_cast<std::uint32_t>(::getpid()));  // abort()
  if (calls == Calls::kStarting) {
    for (const int call : kToStart) allow(call);
  }
  give(program, SECCOMP_RET_ERRNO | EPERM);
  return program;
}

}  // namespace

bool close_files(std::initializer_list<std::uint16_t> ports) {
  if (kSanitized) return true;
  const long version =
      ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (version < 1) return false;
  Known known = kKnown[0];
  for (const Known& one : kKnown) {
    if (one.version >= version) known = one;
  }
  const Ruleset rules{(std::uint64_t{1} << known.files) - 1, known.ports ? kBind | kConnect : 0,
                      known.scopes ? kScopes : 0};
  const std::size_t size = known.scopes ? 24 : known.ports ? 16 : 8;
  const auto ruleset = static_cast<int>(::syscall(SYS_landlock_create_ruleset, &rules, size, 0));
  if (ruleset < 0) return false;
  for (const std::uint16_t port : ports) {
    const PortRule rule{kBind, port};
    if (known.ports) ::syscall(SYS_landlock_add_rule, ruleset, kPortRule, &rule, 0);
  }
  const bool done = ::syscall(SYS_landlock_restrict_self, ruleset, 0) == 0;
  ::close(ruleset);
  return done;
}

bool allow_calls(Calls calls) {
  if (kSanitized) return true;
  Program program = program_of(calls);
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0;
}

}  // namespace kvd::admin::sandbox
