#include "kernels/device/cuda/copies/copy_queue.hpp"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "kernels/device/fence.hpp"

namespace kvd::kernels::cuda {
namespace {

// How often a part is looked at: often for as long as it is expected to run, then less and less.
constexpr Nanoseconds kLookSoon = std::chrono::microseconds(20);
constexpr Nanoseconds kLookLate = std::chrono::milliseconds(1);
constexpr std::int64_t kPartsOfABurst = 4;
constexpr Bytes kLeastPart = kKiB * 256;
// The most bursts on the device at once: one runs, and queueing another takes no visible time.
constexpr std::size_t kBursts = 3;
// The time around a burst's expected end in which the thread stays awake.
constexpr Nanoseconds kAwakeBefore = std::chrono::microseconds(30);
constexpr Nanoseconds kAwakeAfter = std::chrono::microseconds(100);
// How long an abandoned thread has to notice that it is abandoned.
constexpr Nanoseconds kGrace = std::chrono::seconds(1);

}  // namespace

Result<std::unique_ptr<CopyQueue>> CopyQueue::start(Direction direction, const QueueWorld& world) {
  KVD_ASSIGN_OR_RETURN(
      BurstStreams streams,
      BurstStreams::create(world.context.driver(), world.burst.order == BurstOrder::kGated));
  return std::unique_ptr<CopyQueue>(new CopyQueue(direction, world, std::move(streams)));
}

CopyQueue::CopyQueue(Direction direction, const QueueWorld& world, BurstStreams streams)
    : world_(world),
      streams_(std::move(streams)),
      order_(world.burst.order),
      size_(world.burst),
      thread_([this, direction] {
        enter(direction);
        run();
      }) {}

void CopyQueue::submit(CopyBatch batch, std::vector<std::uint32_t> slabs) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(batch), std::move(slabs)});
  }
  wake_.notify_all();
}

bool CopyQueue::stop(Nanoseconds limit) {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  std::unique_lock lock(mutex_);
  const auto gone = [this] { return gone_; };
  if (!left_.wait_for(lock, limit, gone)) {
    abandoned_ = true;
    // A thread that does not leave even now is stuck in the driver.
    if (!left_.wait_for(lock, kGrace, gone)) return thread_.detach(), false;
  }
  lock.unlock();
  thread_.join();
  return drained_ && !world_.health.lost();
}

void CopyQueue::enter(Direction direction) {
  ::pthread_setname_np(::pthread_self(), (std::string("kvd-cuda-") + name(direction)).c_str());
  ::prctl(PR_SET_TIMERSLACK, 1000);  // the default adds 50 us to every look at a burst
  (void)world_.health
      .check(world_.context.driver().ctx_set_current(world_.context.get()), "entering the context")
      .ok();
}

void CopyQueue::run() {
  do {
    if (!world_.health.lost()) {
      reap();
      load();
    }
    if (world_.health.lost()) fail_all();
  } while (pause());
  const std::lock_guard lock(mutex_);
  gone_ = true;
  left_.notify_all();
}

void CopyQueue::load() {
  while (parts_.size() < BurstStreams::kParts && !world_.health.lost() && take_batch()) {
    const bool full = bursts_.empty() || burst_left_ <= Bytes(0);
    if (full && !begin_burst()) return;
    load_part();
  }
}

// False where it has to wait until another burst has ended.
bool CopyQueue::begin_burst() {
  if (bursts_.size() >= (order_ == BurstOrder::kSeen ? 1 : kBursts)) return false;
  const TimePoint now = world_.clock.now();
  if (bursts_.empty()) moved_at_ = now;
  if (order_ == BurstOrder::kGated && !bursts_.empty()) {
    const CUresult waits = streams_.wait_at_gate(last_burst_ + 1);
    if (!queues_behind(waits)) return false;
  }
  ++last_burst_;
  bursts_.push_back({now, {}});
  burst_left_ = size_.bytes();
  part_bytes_ = std::max(Bytes(burst_left_.value / kPartsOfABurst), kLeastPart);
  return true;
}

// A burst that waited for another one began when that one ended.
void CopyQueue::end_burst() {
  const Burst ended = bursts_.front();
  bursts_.pop_front();
  size_.on_burst(ended.bytes, moved_at_ - ended.start);
  if (!bursts_.empty()) bursts_.front().start = moved_at_;
}

// Precondition: a batch is being queued.
void CopyQueue::load_part() {
  Part part{++last_part_, {}, {}};
  fill(part);
  burst_left_ -= std::max(part.bytes, Bytes(1));
  bursts_.back().bytes += part.bytes;
  part.last = burst_left_ <= Bytes(0);
  finish_part(part);
  parts_.push_back(std::move(part));
}

void CopyQueue::fill(Part& part) {
  // A rest of the burst that is too small for a part of its own joins this part: as a part its
  // pieces would be cut small.
  const Bytes size = burst_left_ - part_bytes_ < kLeastPart ? burst_left_ : part_bytes_;
  Bytes room = size;
  do {
    CopyList list = moving_->cursor.take(room, size);
    room -= list.bytes;
    part.bytes += list.bytes;
    issue(list, part);
    if (!moving_->status.ok() || moving_->cursor.done()) {
      part.ended.push_back(std::move(*moving_));
      moving_.reset();
    } else if (list.empty()) {
      return;  // the room left is not worth a piece
    }
  } while (room > Bytes(0) && take_batch());
}

// The next burst is let in before the fences are written, which takes some time. As far as the
// driver allows, nothing waits at a gate that is not already opened.
void CopyQueue::finish_part(Part& part) {
  must(streams_.end_part(part.number), "marking the end of a burst");
  if (world_.health.lost()) return;
  if (part.last && order_ == BurstOrder::kGated) {
    (void)queues_behind(streams_.open_gate(last_burst_ + 1));
  }
  for (Moving& moving : part.ended) part.writes = write_fence(moving) || part.writes;
  if (part.writes) must(streams_.end_writes(part.number), "marking the end of fences");
}

// Where the driver refuses, the CPU makes the gap.
bool CopyQueue::queues_behind(CUresult asked) {
  if (world_.health.check(asked, "queueing a burst behind another one").ok()) return true;
  order_ = BurstOrder::kSeen;
  return false;
}

// For driver calls that must not fail: without them nobody could tell when copies end, or which
// burst they belong to.
void CopyQueue::must(CUresult result, const char* what) {
  const Status status = world_.health.check(result, what);
  if (!status.ok()) world_.health.lose(status.error());
}

// The driver's documentation does not say that its batches accept copies from host memory to host
// memory.
CopyForm CopyQueue::form_of(const CopyBatch& batch) const {
  return batch.in_place ? CopyForm::kSingle : world_.form;
}

// Whether there is a batch to queue; takes the next one where there was none.
bool CopyQueue::take_batch() {
  Order order;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    if (moving_) return true;
    if (waiting_.empty()) return false;
    order = std::move(waiting_.front());
    waiting_.pop_front();
  }
  CopyBatch& batch = order.batch;
  moving_.emplace(
      Moving{batch.ticket,
             ExtentCursor(std::move(batch.extents), kRegistrationSpan, std::move(order.slabs)),
             batch.fence,
             world_.pages.target(batch.fence.word),
             world_.clock.now(),
             form_of(batch),
             {},
             {}});
  return true;
}

void CopyQueue::issue(CopyList& list, const Part& part) {
  moving_->bytes += list.bytes;
  moving_->status =
      world_.health.check(streams_.copy(part.number, list, moving_->form), "queueing copies");
}

// False where no write was queued: then the CPU writes the fence, if there is one.
bool CopyQueue::write_fence(Moving& moving) {
  if (!moving.status.ok() || !moving.target ||
      !world_.pages.raise(moving.target, moving.fence.value)) {
    return false;
  }
  const CUresult written = streams_.write(moving.target.address(), moving.fence.value);
  if (world_.health.check(written, "queueing a fence").ok()) return true;
  world_.pages.done(moving.target);
  moving.target = {};
  return false;
}

void CopyQueue::reap() {
  while (!parts_.empty()) {
    const Part& first = parts_.front();
    const CUresult result = streams_.query(first.number, first.writes);
    if (abandoned_) return;
    if (result == CUDA_ERROR_NOT_READY) break;
    const Status status = world_.health.check(result, "copying");
    if (!status.ok()) return world_.health.lose(status.error());
    moved_at_ = world_.clock.now();
    for (Moving& moving : parts_.front().ended) finish(moving);
    const bool last = first.last;
    parts_.pop_front();
    if (last || parts_.empty()) end_burst();
  }
  watch();
}

void CopyQueue::finish(Moving& moving) {
  if (moving.status.ok()) {
    if (moving.target) {
      wake(moving.fence);
    } else {
      publish(moving.fence);
    }
  }
  world_.pages.done(moving.target);
  report(moving, moving.status);
}

void CopyQueue::watch() {
  if (parts_.empty() || world_.clock.now() - moved_at_ <= world_.stall_limit) return;
  world_.health.lose(make_error(
      ErrorCode::kDeviceError,
      "copies have not moved for " +
          std::to_string(std::chrono::ceil<std::chrono::milliseconds>(world_.stall_limit).count()) +
          " ms"));
}

// Nothing is known about copies on a lost device, so their pages stay registered.
void CopyQueue::fail_all() {
  const Status lost = world_.health.status();
  for (const Part& part : parts_) {
    for (const Moving& moving : part.ended) report(moving, lost);
  }
  parts_.clear();
  bursts_.clear();
  if (moving_) report(*moving_, lost);
  moving_.reset();
  std::deque<Order> dropped;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(waiting_);
  }
  for (const Order& order : dropped) world_.finished.push({order.batch.ticket, lost, {}, {}});
}

// Batches overlap on the device. Each is given the time since the one before it ended, so that the
// sum over batches is the time that the queue worked.
void CopyQueue::report(const Moving& moving, Status status) {
  const TimePoint now = world_.clock.now();
  const Nanoseconds busy = now - std::max(moving.start, ended_at_);
  ended_at_ = now;
  const Bytes bytes = status.ok() ? moving.bytes : Bytes(0);
  world_.finished.push({moving.ticket, std::move(status), bytes, busy});
}

// If nothing is queued behind a burst although more waits, the thread polls for the burst's end
// instead of sleeping: a batch is ready then, and the link must not idle.
bool CopyQueue::is_about_to_run_dry() const {
  if (order_ != BurstOrder::kSeen || !moving_ || bursts_.empty() || burst_left_ > Bytes(0)) {
    return false;
  }
  const Burst& running = bursts_.front();
  const Nanoseconds left = running.start + size_.time_of(running.bytes) - world_.clock.now();
  return left < kAwakeBefore && left > -kAwakeAfter;
}

// False when the thread should leave. The clock does not belong to the queue, so it is read without
// the mutex.
bool CopyQueue::pause() {
  const Nanoseconds running = parts_.empty() ? Nanoseconds(0) : world_.clock.now() - moved_at_;
  const bool stays_awake = is_about_to_run_dry();
  std::unique_lock lock(mutex_);
  drained_ = parts_.empty();
  if (abandoned_ || (stopping_ && drained_)) return false;
  if (drained_ && !moving_) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  } else if (!stays_awake) {
    wake_.wait_for(lock, std::clamp<Nanoseconds>(running / 16, kLookSoon, kLookLate));
  }
  return true;
}

}  // namespace kvd::kernels::cuda
