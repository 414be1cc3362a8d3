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

/// One direction of the device: a stream, and a thread that feeds it. At most two bursts are queued
/// there, so that an engine's own small copy, which waits in the same hardware queue, does not wait
/// for more; the next one goes in when the first is seen to be done. A batch's fence is written in
/// the stream, after its last burst. The thread sleeps while nothing is to do.
/// Owner: submit is thread-safe.
/// Errors: a batch whose copies the driver refuses fails alone. A sticky error, and a burst that
///         takes longer than the limit, lose the device: all batches fail, none is fenced.
class CopyQueue {
 public:
  static constexpr std::size_t kBursts = 2;

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
  struct Burst {
    std::size_t event = 0;
    Bytes bytes;
    std::vector<Moving> ended;  // batches whose last byte is in this burst
  };

  CopyQueue(Direction direction, const QueueWorld& world, Stream stream,
            std::array<Event, kBursts> events);
  void run();
  void enter(Direction direction);
  void load();
  void load_burst();
  [[nodiscard]] bool take_batch();
  [[nodiscard]] CopyForm form_of(const CopyBatch& batch) const;
  void issue(CopyList& list);
  void end_batch(Burst& burst);
  void write_fence(Moving& moving);
  void reap();
  void finish(Moving& moving);
  void watch();
  void fail_all();
  void report(const Moving& moving, Status status);
  [[nodiscard]] bool pause();

  const QueueWorld world_;
  const Stream stream_;
  const std::array<Event, kBursts> events_;

  // The thread's own.
  std::optional<Moving> moving_;
  std::deque<Burst> bursts_;
  BurstSize size_;
  std::size_t last_event_ = 0;
  TimePoint ended_at_{0};  // when the last batch was reported
  TimePoint moved_at_{0};  // when a burst last ended, or the first was queued on an idle device

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
