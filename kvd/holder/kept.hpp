#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/vocabulary/closer.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::holder {

/// Descriptors by name, as systemd's store has them: a name may have several, a file one. A
/// descriptor that is not kept is closed on another thread: the last close() of a slab gives its
/// memory back, and closing a stranger's descriptor takes as long as the stranger likes.
/// Source: sd_pid_notify_with_fds(3). Owner: one thread.
/// Errors: none; what is beyond the bounds is closed.
class Kept {
 public:
  static constexpr std::size_t kMostName = 255;

  explicit Kept(std::size_t most) : most_(most) {}

  /// What one datagram says, with the descriptors that came with it. Text that is no order about
  /// descriptors changes nothing.
  void take(std::string_view text, std::vector<UniqueFd> descriptors);

  [[nodiscard]] const std::vector<std::pair<std::string, UniqueFd>>& all() const { return all_; }
  [[nodiscard]] std::size_t most() const { return most_; }
  /// Whether the program has said that it is ready, since the last call.
  [[nodiscard]] bool take_ready() { return std::exchange(ready_, false); }

 private:
  void add(const std::string& name, const UniqueFd& descriptor);

  Closer closer_;
  std::size_t most_;
  bool ready_ = false;
  std::vector<std::pair<std::string, UniqueFd>> all_;
};

}  // namespace kvd::holder
