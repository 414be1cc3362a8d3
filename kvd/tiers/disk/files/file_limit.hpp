#pragma once

#include <csignal>
#include <ctime>

namespace kvd::disk {

/// While it lives, a write of this thread beyond RLIMIT_FSIZE is an error (EFBIG), and no signal
/// that ends the process.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigemptyset(&own_);
    sigaddset(&own_, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &own_, &before_);
  }
  ~NoFileSizeSignal() {
    if (sigismember(&before_, SIGXFSZ) == 1) return;
    constexpr timespec kNow{0, 0};
    while (::sigtimedwait(&own_, nullptr, &kNow) == SIGXFSZ) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  sigset_t own_{}, before_{};
};

}  // namespace kvd::disk
