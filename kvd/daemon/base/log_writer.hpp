#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::daemon {

/// Writes lines to a descriptor on a thread of its own, so that nobody who logs waits for whoever
/// reads the log. Lines for which there is no room are lost and counted; the next line that is
/// written is preceded by one that tells how many.
/// Source: kvd. Owner: thread-safe. The descriptor outlives it.
class LogWriter {
 public:
  LogWriter(int fd, Bytes room);
  /// Ends at once: what waits is not written.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  /// Returns at once. `line` ends in a line feed.
  void push(std::string line);
  /// Waits until everything pushed so far is written; false: not within `timeout`.
  bool flush(Nanoseconds timeout);
  /// Lines lost for want of room since the start.
  [[nodiscard]] std::uint64_t lost() const;

 private:
  void run();
  /// False: it is to end.
  [[nodiscard]] bool write(const std::string& line);
  [[nodiscard]] bool wait_writable() const;

  const int fd_;
  const std::size_t room_;
  UniqueFd stop_;  ///< an eventfd: ends a wait for the descriptor

  mutable std::mutex mutex_;
  std::condition_variable pushed_;
  std::condition_variable written_;
  std::deque<std::string> lines_;  // guarded by mutex_, like the rest
  std::size_t waiting_bytes_ = 0;
  std::uint64_t lost_ = 0;
  std::uint64_t told_ = 0;  ///< of the lost
  bool writing_ = false;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace kvd::daemon
