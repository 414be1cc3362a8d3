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

/// One direction of the device: two streams, and a thread that feeds them, in bursts.
/// A burst is queued in parts, to either stream in turn: what it costs a copy engine to begin a
/// copy is hidden behind those of the other stream, which at 64 KiB nearly doubles the rate.
/// Between two bursts the streams run dry for some microseconds, which is when copies of other
/// processes come to their turn: a process whose queue never empties keeps a copy engine for its
/// whole time slice of 1 ms. (Both seen on an H200: deploy/gpu-reports, E21 and E14.) Batches go
/// one after the other: the first copy of one waits for all of those before. Its fence is written
/// behind its last copy in either stream. The thread sleeps while nothing is to do. Owner: submit
/// is thread-safe. Errors: a batch whose copies the driver refuses fails alone. A sticky error, and
/// a part of a
///         burst that takes longer than the limit, lose the device: all batches fail, none is
///         fenced.
class CopyQueue {
 public:
  static constexpr std::size_t kStreams = 2;
  static constexpr std::size_t kParts = 2 * kStreams;  // on the device at once

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
    std::uint64_t after = 0;               // the last part that has copies of a batch before
    std::array<bool, kStreams> ordered{};  // which streams wait for that
    Bytes bytes;
    Status status;
  };
  /// A part of a burst, on the device.
  struct Part {
    std::uint64_t number = 0;  // its stream and its event follow from that
    Bytes bytes;
    std::vector<Moving> ended;  // batches whose last byte is in this part
  };

  CopyQueue(Direction direction, const QueueWorld& world, std::array<Stream, kStreams> streams,
            std::array<Event, kParts> events);
  [[nodiscard]] const Stream& stream_of(const Part& part) const {
    return streams_[part.number % kStreams];
  }
  [[nodiscard]] const Event& event_of(const Part& part) const {
    return events_[part.number % kParts];
  }
  void run();
  void enter(Direction direction);
  void load();
  void begin_burst();
  void end_burst();
  void load_part();
  [[nodiscard]] bool take_batch();
  [[nodiscard]] CopyForm form_of(const CopyBatch& batch) const;
  void issue(CopyList& list, const Part& part);
  void end_batch(Part& part);
  void write_fence(Moving& moving, const Part& part);
  void wait_for_other_stream(const Part& part, std::uint64_t last);
  void reap();
  void finish(Moving& moving);
  void watch();
  void fail_all();
  void report(const Moving& moving, Status status);
  [[nodiscard]] bool is_about_to_run_dry() const;
  [[nodiscard]] bool pause();

  const QueueWorld world_;
  const std::array<Stream, kStreams> streams_;
  const std::array<Event, kParts> events_;

  // The thread's own.
  std::optional<Moving> moving_;
  std::deque<Part> parts_;
  BurstSize size_;
  Bytes burst_left_;       // what may still be queued of the burst in hand
  Bytes burst_bytes_;      // what was
  Bytes part_bytes_;       // of each of its parts, at most
  TimePoint began_at_{0};  // the burst in hand
  std::uint64_t last_part_ = 0;
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
