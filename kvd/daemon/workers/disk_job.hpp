#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "ipc/vocabulary/units.hpp"
#include "kvd/daemon/base/inbox.hpp"

namespace kvd::daemon {

/// Work that waits for a file system, on a thread that may outlive everything else, as a disk may
/// hang.
/// Owner: control thread.
class DiskJob {
 public:
  /// What remains to be done on the control thread.
  using Then = std::function<void()>;
  using Work = std::function<Then()>;

  /// `ended` is posted when the work is done, unless the job was given up before.
  static std::shared_ptr<DiskJob> start(Inbox& inbox, Work work, std::function<void()> ended) {
    auto job = std::make_shared<DiskJob>();
    job->thread_ = std::thread([job, &inbox, work = std::move(work), ended = std::move(ended)] {
      Then then = work();
      const std::lock_guard lock(job->mutex_);
      job->then_ = std::move(then);
      job->ended_ = true;
      job->changed_.notify_all();
      if (!job->given_up_) inbox.post(ended);
    });
    return job;
  }
  /// Call it after `ended` has told that the work is done.
  void finish() {
    thread_.join();
    if (then_) std::exchange(then_, nullptr)();
  }
  /// Tells that the caller no longer needs the end. False: the job is still at work, and is left to
  /// itself.
  bool give_up(Nanoseconds patience) {
    std::unique_lock lock(mutex_);
    given_up_ = true;
    const bool ended = changed_.wait_for(lock, patience, [this] { return ended_; });
    lock.unlock();
    ended ? thread_.join() : thread_.detach();
    return ended;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false, given_up_ = false;  // guarded by mutex_, as then_ is before the end
  Then then_;
  std::thread thread_;
};

}  // namespace kvd::daemon
