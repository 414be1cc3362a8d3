#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd {

/// Closes descriptors that came from outside on a thread of its own. The last close() of a socket
/// that lingers, or of a file in a file system that its sender serves, takes as long as the sender
/// likes.
/// Owner: thread-safe. Its thread outlives it where a close() still takes its time.
class Closer {
 public:
  Closer() : queue_(std::make_shared<Queue>()) {
    std::thread([queue = queue_] { run(*queue); }).detach();
  }
  ~Closer() {
    const std::lock_guard lock(queue_->mutex);
    queue_->ending = true;
    queue_->changed.notify_one();
  }
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;

  void close(UniqueFd fd) {
    const std::lock_guard lock(queue_->mutex);
    queue_->fds.push_back(std::move(fd));
    queue_->changed.notify_one();
  }

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<UniqueFd> fds;  // guarded by mutex
    bool ending = false;       // likewise
  };

  static void run(Queue& queue) {
    while (true) {
      std::deque<UniqueFd> fds;
      {
        std::unique_lock lock(queue.mutex);
        queue.changed.wait(lock, [&] { return queue.ending || !queue.fds.empty(); });
        if (queue.fds.empty()) return;
        fds.swap(queue.fds);
      }
    }
  }

  std::shared_ptr<Queue> queue_;
};

}  // namespace kvd
