#include "tests/gpu/peers/reap.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::gpu {

std::optional<int> reap(pid_t pid, double limit_s) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd gone{pidfd.get(), POLLIN, 0};
  int status = 0;
  if (pidfd.valid() && ::poll(&gone, 1, static_cast<int>(limit_s * 1000)) != 1) return std::nullopt;
  if (::waitpid(pid, &status, pidfd.valid() ? WNOHANG : 0) != pid) return std::nullopt;
  return status;
}

}  // namespace kvd::gpu
