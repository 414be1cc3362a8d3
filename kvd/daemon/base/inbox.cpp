#include "kvd/daemon/base/inbox.hpp"

#include <sys/eventfd.h>

namespace kvd::daemon {

Result<Inbox> Inbox::create() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) {
    return make_error(ErrorCode::kUnavailable, "no file descriptor left: raise RLIMIT_NOFILE");
  }
  return Inbox(std::move(fd));
}

void Inbox::post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  (void)::eventfd_write(fd_.get(), 1);  // fails only when it is readable already
}

std::vector<Inbox::Task> Inbox::take() {
  eventfd_t count = 0;
  (void)::eventfd_read(fd_.get(), &count);  // nothing there is fine
  const std::lock_guard lock(mutex_);
  return std::exchange(tasks_, {});
}

}  // namespace kvd::daemon
