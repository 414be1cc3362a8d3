#pragma once

#include <mutex>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "kernels/device/device_backend.hpp"

namespace kvd::kernels {

/// Copy threads leave finished batches here and the poller picks them up. A descriptor is readable
/// exactly while the box holds something.
/// Owner: thread-safe.
class CompletionBox {
 public:
  [[nodiscard]] static Result<UniqueFd> make_event();
  /// `event` comes from make_event().
  explicit CompletionBox(UniqueFd event) : event_(std::move(event)) {}

  void push(Completion completion);
  /// Appends what the box holds, oldest first, and empties it.
  void drain(std::vector<Completion>& completed);
  [[nodiscard]] int fd() const { return event_.get(); }

 private:
  std::mutex mutex_;  // guards finished_ and keeps event_ in step with it
  std::vector<Completion> finished_;
  const UniqueFd event_;
};

}  // namespace kvd::kernels
