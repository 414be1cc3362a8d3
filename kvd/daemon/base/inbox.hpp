#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::daemon {

/// Work that other threads hand to the control thread, which runs it in order of arrival.
/// Owner: post() is thread-safe; fd() and take() are the control thread's.
class Inbox {
 public:
  using Task = std::function<void()>;

  /// Errors: Unavailable when out of fds.
  static Result<Inbox> create();
  Inbox(Inbox&& other) noexcept : fd_(std::move(other.fd_)) {}

  void post(Task task);
  /// Readable while tasks wait.
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::vector<Task> take();

 private:
  explicit Inbox(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
  std::mutex mutex_;
  std::vector<Task> tasks_;  // guarded by mutex_
};

}  // namespace kvd::daemon
