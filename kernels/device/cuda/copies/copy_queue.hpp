#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kernels/device/cuda/copies/bursts/burst_size.hpp"
#include "kernels/device/cuda/copies/bursts/burst_streams.hpp"
#include "kernels/device/cuda/copies/extent_cursor.hpp"
#include "kernels/device/cuda/copies/fence_pages.hpp"
#include "kernels/device/cuda/driver/context.hpp"
#include "kernels/device/cuda/driver/health.hpp"
#include "kernels/device/device_backend.hpp"
#include "kernels/device/host/completion_box.hpp"

namespace kvd::kernels::cuda {

/// What both queues of a device share; all of it outlives them.
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

/// One direction of the device: its streams, and a thread that feeds them in bursts. Between two
/// bursts the streams stand still for a moment, in which copies of other processes get their turn:
/// a process whose queue never empties keeps a copy engine for its whole time slice of 1 ms (seen
/// on an H200: deploy/gpu-reports, E14). The moment is short where the device makes it: the next
/// bursts are queued already, and a gate lets one begin once the one before has ended. Where
/// streams cannot wait on memory, the thread waits for that end and then queues the next burst.
/// Batches have no order on the device, but they end in order: fences are written, and ends
/// reported, after all that was queued before. The thread sleeps while there is nothing to do.
/// Owner: submit is thread-safe.
/// Errors: a batch whose copies the driver refuses fails alone. A sticky error, or a part of a
/// burst that takes longer than the limit, means that the device is lost: all batches fail, and no
/// fence is written.
class CopyQueue {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CopyQueue>> start(Direction direction,
                                                                const QueueWorld& world);
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;
  /// Precondition: stop() returned true. The context is current.
  ~CopyQueue() = default;

  /// `slabs`: the slabs of the extents, as ExtentCursor takes them. Precondition: no extent of the
  /// batch has source zero.
  void submit(CopyBatch batch, std::vector<std::uint32_t> slabs);
  /// Drops what is not queued on the device and waits for the rest. False when that did not visibly
  /// end in time: then this object and all memory it copies must stay for ever.
  [[nodiscard]] bool stop(Nanoseconds limit);

 private:
  struct Order {
    CopyBatch batch;
    std::vector<std::uint32_t> slabs;
  };
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
  /// A part of a burst that is on the device.
  struct Part {
    std::uint64_t number = 0;
    Bytes bytes;
    std::vector<Moving> ended;  // batches whose last byte is in this part
    bool writes = false;        // some of them have fences
    bool last = false;          // last part of its burst
  };
  /// A burst that has parts on the device, or that is being made.
  struct Burst {
    TimePoint start{0};
    Bytes bytes;
  };

  CopyQueue(Direction direction, const QueueWorld& world, BurstStreams streams);
  void run();
  void enter(Direction direction);
  void load();
  [[nodiscard]] bool begin_burst();
  void end_burst();
  void load_part();
  void fill(Part& part);
  void finish_part(Part& part);
  [[nodiscard]] bool queues_behind(CUresult asked);
  [[nodiscard]] bool take_batch();
  [[nodiscard]] CopyForm form_of(const CopyBatch& batch) const;
  void issue(CopyList& list, const Part& part);
  [[nodiscard]] bool write_fence(Moving& moving);
  void must(CUresult result, const char* what);
  void reap();
  void finish(Moving& moving);
  void watch();
  void fail_all();
  void report(const Moving& moving, Status status);
  [[nodiscard]] bool is_about_to_run_dry() const;
  [[nodiscard]] bool pause();

  const QueueWorld world_;
  const BurstStreams streams_;

  // Used by the thread alone.
  std::optional<Moving> moving_;
  std::deque<Part> parts_;
  std::deque<Burst> bursts_;
  BurstOrder order_;
  BurstSize size_;
  Bytes burst_left_;  // what may still be queued of the last burst
  Bytes part_bytes_;  // the most that each of its parts has
  std::uint64_t last_part_ = 0;
  std::uint64_t last_burst_ = 0;
  TimePoint ended_at_{0};  // when the last batch was reported
  TimePoint moved_at_{0};  // when a part last ended, or the first was queued on an idle device

  std::mutex mutex_;  // guards the members up to the thread
  std::condition_variable wake_, left_;
  std::deque<Order> waiting_;
  bool stopping_ = false;
  bool gone_ = false;     // the thread has left its loop
  bool drained_ = false;  // nothing of this queue is on the device any more
  std::atomic<bool> abandoned_{false};
  std::thread thread_;  // last: it starts when all else exists
};

}  // namespace kvd::kernels::cuda
