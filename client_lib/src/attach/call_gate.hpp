#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::client {

/// Lets one call at a time through. A call waits for no longer than its deadline allows. This is no
/// std::timed_mutex: that locks by pthread_mutex_clocklock, which ThreadSanitizer does not know, so
/// it would report every access behind it.
/// Owner:   thread-safe
/// Errors:  DeadlineExceeded
class CallGate {
 public:
  /// The right to be inside; it is given back when destroyed.
  using Turn = std::unique_ptr<CallGate, void (*)(CallGate*)>;

  Result<Turn> enter(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    const std::chrono::steady_clock::time_point until(deadline);
    if (!left_.wait_until(lock, until, [&] { return !taken_; })) {
      return make_error(ErrorCode::kDeadlineExceeded, "another thread's call did not end in time");
    }
    return take();
  }

  /// Waits for as long as it takes.
  Turn enter() {
    std::unique_lock lock(mutex_);
    left_.wait(lock, [&] { return !taken_; });
    return take();
  }

 private:
  Turn take() {
    taken_ = true;
    return {this, [](CallGate* gate) { gate->leave(); }};
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    taken_ = false;
    left_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable left_;
  bool taken_ = false;
};

}  // namespace kvd::client
