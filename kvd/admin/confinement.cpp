#include "kvd/admin/confinement.hpp"

#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "kvd/admin/sandbox.hpp"

namespace kvd::admin {
namespace {

constexpr rlim_t kDescriptors = 256;         // two fronts of 96 clients, and what they need
constexpr rlim_t kMemory = rlim_t{1} << 30;  // the largest documents several times

void limit(int resource, rlim_t most) {
  const rlimit bound{most, most};
  ::setrlimit(static_cast<__rlimit_resource>(resource), &bound);
}

Status become(uid_t uid, gid_t gid) {
  if (::setgroups(0, nullptr) == 0 && ::setresgid(gid, gid, gid) == 0 &&
      ::setresuid(uid, uid, uid) == 0) {
    return {};
  }
  return make_error(ErrorCode::kPermissionDenied,
                    "kvd-admin cannot become uid " + std::to_string(uid) + ": " +
                        std::strerror(errno) + "; set admin.user, or empty it to keep kvd's user");
}

void drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  ::syscall(SYS_capset, &header, none);
}

}  // namespace

Result<std::string> confine(const link::Begin& begin) {
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_NOFILE, kDescriptors);
  if (!sandbox::kSanitized) limit(RLIMIT_DATA, kMemory);  // sanitizers reserve terabytes
  if (begin.changes_user != 0) KVD_TRY(become(begin.uid, begin.gid));
  drop_capabilities();
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);  // again: another user clears it
  std::string missing;
  if (!sandbox::close_files({begin.admin_port, begin.metrics_port})) missing = "Landlock";
  if (!sandbox::allow_calls(sandbox::Calls::kStarting)) {
    missing += missing.empty() ? "seccomp" : " and seccomp";
  }
  return missing;
}

void seal() {
  limit(RLIMIT_NPROC, 0);
  (void)sandbox::allow_calls(sandbox::Calls::kServing);
}

}  // namespace kvd::admin
