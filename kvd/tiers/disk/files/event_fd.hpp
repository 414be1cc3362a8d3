#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::disk {

/// A descriptor that is readable from signal() to drain(). Thread-safe.
class EventFd {
 public:
  static Result<EventFd> make() {
    EventFd made;
    made.fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!made.fd_.valid()) {
      return make_error(ErrorCode::kUnavailable, "no file descriptor left: raise RLIMIT_NOFILE");
    }
    return made;
  }
  [[nodiscard]] int get() const { return fd_.get(); }
  // Both calls fail only where there is nothing to do: the count is full, or zero.
  void signal() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof one);
  }
  void drain() const {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto read = ::read(fd_.get(), &count, sizeof count);
  }

 private:
  UniqueFd fd_;
};

}  // namespace kvd::disk
