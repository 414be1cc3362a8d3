#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::test {

/// How a process is to be started. The environment is the test's own with these changes: NAME=value
/// sets, a bare NAME removes.
struct ChildCommand {
  std::vector<std::string> arguments;  // the program first
  std::vector<std::string> environment;
};

/// A program under test: its stdout is read line by line, its stderr is kept. It is killed with the
/// test, whichever way that ends.
class ChildProcess {
 public:
  explicit ChildProcess(const ChildCommand& command);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const;

  /// Reads stdout until a line contains `text` and returns that line; nothing at the end of the
  /// output or when the time is up.
  std::optional<std::string> wait_for_line(const std::string& text);
  /// Whether the process is gone; its exit status is kept for wait().
  [[nodiscard]] bool ended() const;
  /// Waits until stderr contains `text`; false: it did not before the time was up.
  bool wait_for_error(const std::string& text);
  /// The exit status, 128 + n after signal n; nothing when the time is up.
  std::optional<int> wait();
  /// What the process wrote to stderr so far.
  [[nodiscard]] std::string errors() const;

 private:
  using Deadline = std::chrono::steady_clock::time_point;

  std::optional<std::string> next_line(Deadline deadline);

  pid_t pid_ = -1;
  UniqueFd output_;
  UniqueFd errors_;
  std::string unread_;  // bytes of stdout that no line has been made of
};

}  // namespace kvd::test
