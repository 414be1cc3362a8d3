#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kernels/device/cuda/burst_size.hpp"
#include "kernels/device/cuda/context.hpp"
#include "kernels/device/cuda/extent_cursor.hpp"
#include "kernels/device/cuda/fence_pages.hpp"
#include "kernels/device/cuda/health.hpp"
#include "kernels/device/cuda/stream.hpp"
#include "kernels/device/device_backend.hpp"
#include "kernels/device/host/completion_box.hpp"

namespace kvd::kernels::cuda {

/// What both queues of a device share; all outlive them.
struct QueueWorld {
  const PrimaryContext& context;
  const Clock& clock;
  Health& health;
  FencePages& pages;
  CompletionBox& finished;
  CopyForm form;
  BurstRule burst;
  Nanoseconds stall_limit;
};

/// One direction of the device: a stream, and a thread that feeds it, in bursts. A burst is queued in
/// parts, two at a time: the first is small, so that the device begins early. Between two bursts the
/// stream runs dry for some microseconds, which is when copies of other processes come to their turn:
/// a process whose queue never empties keeps a copy engine for its whole time slice (1 ms on an H200,
/// deploy/gpu-reports, E14). A batch's fence is written in the stream, after its last copy. The thread
/// sleeps while nothing is to do.
/// Owner: submit is thread-safe.
/// Errors: a batch whose copies the driver refuses fails alone. A sticky error, and a part of a
///         burst that takes longer than the limit, lose the device: all batches fail, none is fenced.
class CopyQueue {
 public:
  static constexpr std::size_t kParts = 2;

  [[nodiscard]] static Result<std::unique_ptr<CopyQueue>> start(Direction direction,
                                                                const QueueWorld& world);
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;
  /// Precondition: stop() came true. The context is current.
  ~CopyQueue() = default;

  /// Precondition: no extent of the batch has source zero.
  void submit(CopyBatch batch);
  /// Drops what is not queued on the device and waits for what is; false when that could not be
  /// seen to end in time: then this object and all memory it copies must stay for ever.
  [[nodiscard]] bool stop(Nanoseconds limit);

 private:
  /// A batch on its way.
  struct Moving {
    Ticket ticket;
    ExtentCursor cursor;
    Fence fence;
    FencePages::Target target;
    TimePoint start{0};
    CopyForm form;
    Bytes bytes;
    Status status;
  };
  /// A part of a burst, on the device.
  struct Part {
    std::size_t event = 0;
    Bytes bytes;
    std::vector<Moving> ended;  // batches whose last byte is in this part
  };

  CopyQueue(Direction direction, const QueueWorld& world, Stream stream,
            std::array<Event, kParts> events);
  void run();
  void enter(Direction direction);
  void load();
  void begin_burst();
  void end_burst();
  void load_part();
  [[nodiscard]] bool take_batch();
  [[nodiscard]] CopyForm form_of(const CopyBatch& batch) const;
  void issue(CopyList& list);
  void end_batch(Part& part);
  void write_fence(Moving& moving);
  void reap();
  void finish(Moving& moving);
  void watch();
  void fail_all();
  void report(const Moving& moving, Status status);
  [[nodiscard]] bool is_about_to_run_dry(Nanoseconds running) const;
  [[nodiscard]] bool pause();

  const QueueWorld world_;
  const Stream stream_;
  const std::array<Event, kParts> events_;

  // The thread's own.
  std::optional<Moving> moving_;
  std::deque<Part> parts_;
  BurstSize size_;
  Bytes burst_left_;        // what may still be queued of the burst in hand
  Bytes burst_bytes_;       // what was
  Bytes next_part_;         // at most
  TimePoint began_at_{0};   // the burst in hand
  std::size_t last_event_ = 0;
  TimePoint ended_at_{0};  // when the last batch was reported
  TimePoint moved_at_{0};  // when a part last ended, or the first was queued on an idle device

  std::mutex mutex_;  // guards the members up to the thread
  std::condition_variable wake_, left_;
  std::deque<CopyBatch> waiting_;
  bool stopping_ = false;
  bool gone_ = false;     // the thread has left its loop
  bool drained_ = false;  // nothing of this queue is on the device any more
  std::atomic<bool> abandoned_{false};
  std::thread thread_;  // last: starts when all else stands
};

}  // namespace kvd::kernels::cuda
