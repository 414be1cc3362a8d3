#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace kvd::client {

/// Calls a function about once a second. An engine that only uses the memory it has makes no call
/// that would notice a fresh daemon, and its memory would be counted nowhere.
/// Owner:   the client; ends the thread when destroyed
class Reattacher {
 public:
  explicit Reattacher(std::function<void()> attach_where_lost);
  ~Reattacher();
  Reattacher(const Reattacher&) = delete;
  Reattacher& operator=(const Reattacher&) = delete;

 private:
  void run();

  const std::function<void()> attach_where_lost_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ending_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace kvd::client
