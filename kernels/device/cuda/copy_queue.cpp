#include "kernels/device/cuda/copy_queue.hpp"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "kernels/device/fence.hpp"

namespace kvd::kernels::cuda {
namespace {

// How often a part is looked at: as long as it is expected to run, often; then ever less.
constexpr Nanoseconds kLookSoon = std::chrono::microseconds(20);
constexpr Nanoseconds kLookLate = std::chrono::milliseconds(1);
constexpr std::int64_t kPartsOfABurst = 8;
constexpr Bytes kLeastPart = kKiB * 256;
// Around the end that is expected of a burst.
constexpr Nanoseconds kAwakeBefore = std::chrono::microseconds(30);
constexpr Nanoseconds kAwakeAfter = std::chrono::microseconds(100);
// How long an abandoned thread has to notice.
constexpr Nanoseconds kGrace = std::chrono::seconds(1);

}  // namespace

Result<std::unique_ptr<CopyQueue>> CopyQueue::start(Direction direction, const QueueWorld& world) {
  const Driver& driver = world.context.driver();
  KVD_ASSIGN_OR_RETURN(Stream stream, Stream::create(driver));
  KVD_ASSIGN_OR_RETURN(Stream other, Stream::create(driver));
  std::vector<Event> events;
  while (events.size() < kParts) {
    KVD_ASSIGN_OR_RETURN(Event event, Event::create(driver));
    events.push_back(std::move(event));
  }
  return std::unique_ptr<CopyQueue>(new CopyQueue(
      direction, world, {std::move(stream), std::move(other)},
      {std::move(events[0]), std::move(events[1]), std::move(events[2]), std::move(events[3])}));
}

CopyQueue::CopyQueue(Direction direction, const QueueWorld& world,
                     std::array<Stream, kStreams> streams, std::array<Event, kParts> events)
    : world_(world),
      streams_(std::move(streams)),
      events_(std::move(events)),
      size_(world.burst),
      thread_([this, direction] {
        enter(direction);
        run();
      }) {}

void CopyQueue::submit(CopyBatch batch) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(batch));
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
  while (parts_.size() < kParts && !world_.health.lost() && take_batch()) {
    if (parts_.empty()) begin_burst();
    if (burst_left_ <= Bytes(0)) return;  // the streams shall run dry
    load_part();
  }
}

void CopyQueue::begin_burst() {
  burst_left_ = size_.bytes();
  burst_bytes_ = Bytes(0);
  part_bytes_ = std::max(Bytes(burst_left_.value / kPartsOfABurst), kLeastPart);
  began_at_ = moved_at_ = world_.clock.now();
}

// Precondition: nothing of it is on the device any more.
void CopyQueue::end_burst() { size_.on_burst(burst_bytes_, moved_at_ - began_at_); }

// Precondition: a batch is in hand.
void CopyQueue::load_part() {
  Part part{++last_part_, {}, {}};
  // What would be left of the burst is no part of its own: its pieces would be cut small.
  const Bytes size = burst_left_ - part_bytes_ < kLeastPart ? burst_left_ : part_bytes_;
  Bytes room = size;
  do {
    CopyList list = moving_->cursor.take(room, size);
    room -= list.bytes;
    part.bytes += list.bytes;
    issue(list, part);
    if (!moving_->status.ok() || moving_->cursor.done()) {
      end_batch(part);
    } else if (list.empty()) {
      break;  // what room is left is not worth a piece
    }
  } while (room > Bytes(0) && take_batch());
  const CUresult marked = event_of(part).record(stream_of(part));
  const Status status = world_.health.check(marked, "marking the end of a burst");
  // Without the mark nobody can know when the part ends.
  if (!status.ok()) world_.health.lose(status.error());
  burst_left_ -= std::max(part.bytes, Bytes(1));
  burst_bytes_ += part.bytes;
  parts_.push_back(std::move(part));
}

// Nothing says that the driver's batches take copies from host memory to host memory.
CopyForm CopyQueue::form_of(const CopyBatch& batch) const {
  return batch.in_place ? CopyForm::kSingle : world_.form;
}

// Whether a batch is in hand, taking the next one where there was none. The last part may be the
// one that is being made, with copies of the batch before.
bool CopyQueue::take_batch() {
  CopyBatch batch;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    if (moving_) return true;
    if (waiting_.empty()) return false;
    batch = std::move(waiting_.front());
    waiting_.pop_front();
  }
  moving_.emplace(Moving{batch.ticket,
                         ExtentCursor(std::move(batch.extents)),
                         batch.fence,
                         world_.pages.target(batch.fence.word),
                         world_.clock.now(),
                         form_of(batch),
                         last_part_,
                         {},
                         {},
                         {}});
  return true;
}

// What the stream does from here on comes after the parts up to `last` that are on the device.
// Those in its own stream it comes after anyway.
void CopyQueue::wait_for_other_stream(const Part& part, std::uint64_t last) {
  const auto other = std::find_if(parts_.rbegin(), parts_.rend(), [&](const Part& queued) {
    return queued.number <= last && queued.number % kStreams != part.number % kStreams;
  });
  if (other == parts_.rend()) return;
  const CUresult waits =
      world_.context.driver().stream_wait_event(stream_of(part).get(), event_of(*other).get(), 0);
  const Status status = world_.health.check(waits, "putting copies in order");
  if (!status.ok()) world_.health.lose(status.error());
}

void CopyQueue::issue(CopyList& list, const Part& part) {
  bool& ordered = moving_->ordered[part.number % kStreams];
  if (!std::exchange(ordered, true)) wait_for_other_stream(part, moving_->after);
  if (world_.health.lost()) {
    moving_->status = world_.health.status();
    return;
  }
  moving_->bytes += list.bytes;
  moving_->status =
      world_.health.check(stream_of(part).copy(list, moving_->form), "queueing copies");
}

// The batch in hand has nothing more to copy, or may not go on.
void CopyQueue::end_batch(Part& part) {
  if (moving_->status.ok()) write_fence(*moving_, part);
  part.ended.push_back(std::move(*moving_));
  moving_.reset();
}

// Default flags: the write comes after the copies, for everybody who looks (system scope).
void CopyQueue::write_fence(Moving& moving, const Part& part) {
  if (!moving.target || !world_.pages.raise(moving.target, moving.fence.value)) return;
  wait_for_other_stream(part, last_part_);
  const CUresult written = world_.context.driver().stream_write_value64(
      stream_of(part).get(), moving.target.address(), moving.fence.value,
      CU_STREAM_WRITE_VALUE_DEFAULT);
  if (world_.health.check(written, "queueing a fence").ok()) return;
  world_.pages.done(moving.target);
  moving.target = {};  // the CPU does it
}

void CopyQueue::reap() {
  while (!parts_.empty()) {
    const CUresult result = event_of(parts_.front()).query();
    if (abandoned_) return;
    if (result == CUDA_ERROR_NOT_READY) break;
    const Status status = world_.health.check(result, "copying");
    if (!status.ok()) return world_.health.lose(status.error());
    moved_at_ = world_.clock.now();
    for (Moving& moving : parts_.front().ended) finish(moving);
    parts_.pop_front();
    if (parts_.empty()) end_burst();
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
  if (moving_) report(*moving_, lost);
  moving_.reset();
  std::deque<CopyBatch> dropped;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(waiting_);
  }
  for (const CopyBatch& batch : dropped) world_.finished.push({batch.ticket, lost, {}, {}});
}

// Batches overlap on the device; each is given the time since the one before it ended, so that the
// sum over batches is the time that the queue worked.
void CopyQueue::report(const Moving& moving, Status status) {
  const TimePoint now = world_.clock.now();
  const Nanoseconds busy = now - std::max(moving.start, ended_at_);
  ended_at_ = now;
  const Bytes bytes = status.ok() ? moving.bytes : Bytes(0);
  world_.finished.push({moving.ticket, std::move(status), bytes, busy});
}

// The gap between two bursts is the link's loss, so its beginning is waited for awake where more
// waits: a batch is in hand then.
bool CopyQueue::is_about_to_run_dry() const {
  if (!moving_ || parts_.empty() || burst_left_ > Bytes(0)) return false;
  const Nanoseconds left = began_at_ + size_.time_of(burst_bytes_) - world_.clock.now();
  return left < kAwakeBefore && left > -kAwakeAfter;
}

// False when the thread shall leave. The clock is not the queue's: it is read without the mutex.
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
