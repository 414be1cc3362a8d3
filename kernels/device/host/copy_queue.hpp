#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/device_backend.hpp"
#include "kernels/device/host/completion_box.hpp"
#include "kernels/device/host/link_throttle.hpp"

namespace kvd::kernels {

/// One direction's copy engine: a thread that moves batches in the order in which they came, in
/// pieces so small that it notices a stop or a new link rate within a piece.
/// Owner: submit and set_link_bandwidth are thread-safe.
/// Destruction waits for the current piece and drops the rest: those fences stay unwritten and
/// those batches never complete.
class CopyQueue {
 public:
  static constexpr Bytes kPiece = kMiB;

  CopyQueue(Direction direction, const Clock& clock, CompletionBox& finished);
  ~CopyQueue();
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  void submit(CopyBatch batch);
  /// Zero lifts the throttle. The piece that waits passes at once.
  void set_link_bandwidth(BytesPerSecond rate);

 private:
  void run();
  [[nodiscard]] bool next(CopyBatch& batch);
  [[nodiscard]] bool move(const CopyExtent& extent, bool in_place);
  [[nodiscard]] bool cross_link(Bytes length);

  const Clock& clock_;
  CompletionBox& finished_;
  std::mutex mutex_;  // guards the members up to the thread
  std::condition_variable wake_;
  std::deque<CopyBatch> waiting_;
  LinkThrottle throttle_;
  std::uint64_t rate_changes_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // last: it starts when all else exists
};

}  // namespace kvd::kernels
