#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::transport {

/// Closes descriptors that came from outside on a thread of its own. The last close() of a socket
/// that lingers, or of a file in a file system that its sender serves, takes as long as the sender
/// likes.
/// Owner: thread-safe. Its thread outlives it where a close() still takes its time.
class Closer {
 public:
  Closer();
  ~Closer();
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;

  void close(UniqueFd fd);

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<UniqueFd> fds;  // guarded by mutex
    bool ending = false;       // likewise
  };
  static void run(Queue& queue);

  std::shared_ptr<Queue> queue_;
};

}  // namespace kvd::transport
