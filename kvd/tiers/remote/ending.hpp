#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace kvd::remote {

/// How the end of a link's thread is asked for and awaited. Thread-safe.
class Ending {
 public:
  void ask() {
    const std::lock_guard lock(mutex_);
    asked_ = true;
  }
  [[nodiscard]] bool asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

  // ---- the thread says ----
  /// Whether it dials, which may take as long as the resolver does. Nothing is under way then.
  void dials(bool now) { change(dials_, now); }
  /// It touches no memory of others any more.
  void done() { change(done_, true); }

  /// Waits for done(), and no longer than `patience` for a thread that dials.
  void wait(std::chrono::nanoseconds patience) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, patience, [this] { return done_; })) return;
    changed_.wait(lock, [this] { return done_ || dials_; });
  }

 private:
  void change(bool& what, bool now) {
    const std::lock_guard lock(mutex_);
    what = now;
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool asked_ = false, dials_ = false, done_ = false;
};

}  // namespace kvd::remote
