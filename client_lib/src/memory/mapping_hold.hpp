#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::client {

/// Whether this process may change what it has mapped. An engine holds that while it captures a
/// graph: before memory goes, what the GPU does with it has to end, and the driver answers a wait
/// for the device by ending every capture, whichever thread asks (cuda.h, at cuStreamBeginCapture).
/// Owner:   thread-safe; one a process, as a context is
class MappingHold {
 public:
  static MappingHold& of_process();

  [[nodiscard]] bool held() const;
  /// A change under way: no hold begins while it lives. Null: mappings are held.
  using Change = std::shared_ptr<const void>;
  [[nodiscard]] Change begin_change();
  /// The same for a call of the engine. Errors: WouldBlock while mappings are held.
  Result<Change> need_change();

  /// Runs the change now, or once nobody holds any more.
  void when_free(std::function<void()> change);

  /// Waits for changes under way; holds add up. Errors: DeadlineExceeded, and nothing is held.
  Status hold(TimePoint deadline);
  /// Ends one hold. The last one runs what was put off before it returns.
  void release();

 private:
  void end_change();

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  unsigned holds_ = 0;
  unsigned changes_ = 0;
  std::vector<std::function<void()>> put_off_;
};

}  // namespace kvd::client
