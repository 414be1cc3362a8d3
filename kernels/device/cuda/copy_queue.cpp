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
// The first part of a burst is an eighth, and each one after it twice as much as the one before:
// queueing it takes less time than that one moves, also with copies of 64 KiB.
constexpr std::int64_t kFirstPart = 8;
constexpr Bytes kLeastPart = kKiB * 256;
// How long an abandoned thread has to notice.
constexpr Nanoseconds kGrace = std::chrono::seconds(1);

}  // namespace

Result<std::unique_ptr<CopyQueue>> CopyQueue::start(Direction direction, const QueueWorld& world) {
  const Driver& driver = world.context.driver();
  KVD_ASSIGN_OR_RETURN(Stream stream, Stream::create(driver));
  KVD_ASSIGN_OR_RETURN(Event first, Event::create(driver));
  KVD_ASSIGN_OR_RETURN(Event second, Event::create(driver));
  return std::unique_ptr<CopyQueue>(
      new CopyQueue(direction, world, std::move(stream), {std::move(first), std::move(second)}));
}

CopyQueue::CopyQueue(Direction direction, const QueueWorld& world, Stream stream,
                     std::array<Event, kParts> events)
    : world_(world),
      stream_(std::move(stream)),
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
    if (burst_left_ <= Bytes(0)) return;  // the stream shall run dry
    load_part();
  }
}

void CopyQueue::begin_burst() {
  burst_left_ = size_.bytes();
  burst_bytes_ = Bytes(0);
  next_part_ = std::max(Bytes(burst_left_.value / kFirstPart), kLeastPart);
  began_at_ = moved_at_ = world_.clock.now();
}

// Precondition: nothing of it is on the device any more.
void CopyQueue::end_burst() { size_.on_burst(burst_bytes_, moved_at_ - began_at_); }

// Precondition: a batch is in hand.
void CopyQueue::load_part() {
  Part part;
  // What would be left of the burst after it is worth no part of its own.
  const Bytes size = burst_left_ < next_part_ * 2 ? burst_left_ : next_part_;
  Bytes room = size;
  do {
    CopyList list = moving_->cursor.take(room, size);
    room -= list.bytes;
    part.bytes += list.bytes;
    issue(list);
    if (!moving_->status.ok() || moving_->cursor.done()) {
      end_batch(part);
    } else if (list.empty()) {
      break;  // what room is left is not worth a piece
    }
  } while (room > Bytes(0) && take_batch());
  part.event = last_event_ = (last_event_ + 1) % kParts;
  const CUresult marked = events_[part.event].record(stream_);
  const Status status = world_.health.check(marked, "marking the end of a burst");
  // Without the mark nobody can know when the part ends.
  if (!status.ok()) world_.health.lose(status.error());
  burst_left_ -= std::max(part.bytes, Bytes(1));
  burst_bytes_ += part.bytes;
  next_part_ = next_part_ * 2;
  parts_.push_back(std::move(part));
}

// Nothing says that the driver's batches take copies from host memory to host memory.
CopyForm CopyQueue::form_of(const CopyBatch& batch) const {
  return batch.in_place ? CopyForm::kSingle : world_.form;
}

// Whether a batch is in hand, taking the next one where there was none.
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
                         {},
                         {}});
  return true;
}

void CopyQueue::issue(CopyList& list) {
  moving_->bytes += list.bytes;
  moving_->status = world_.health.check(stream_.copy(list, moving_->form), "queueing copies");
}

// The batch in hand has nothing more to copy, or may not go on.
void CopyQueue::end_batch(Part& part) {
  if (moving_->status.ok()) write_fence(*moving_);
  part.ended.push_back(std::move(*moving_));
  moving_.reset();
}

// Default flags: the write comes after the copies, for everybody who looks (system scope).
void CopyQueue::write_fence(Moving& moving) {
  if (!moving.target || !world_.pages.raise(moving.target, moving.fence.value)) return;
  const CUresult written = world_.context.driver().stream_write_value64(
      stream_.get(), moving.target.address(), moving.fence.value, CU_STREAM_WRITE_VALUE_DEFAULT);
  if (world_.health.check(written, "queueing a fence").ok()) return;
  world_.pages.done(moving.target);
  moving.target = {};  // the CPU does it
}

void CopyQueue::reap() {
  while (!parts_.empty()) {
    const CUresult result = events_[parts_.front().event].query();
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

// The gap between two bursts is the link's loss, so its beginning is waited for awake. Where a batch
// is in hand, more waits.
bool CopyQueue::is_about_to_run_dry(Nanoseconds running) const {
  if (!moving_ || parts_.size() != 1) return false;
  const Nanoseconds left = size_.time_of(parts_.front().bytes) - running;
  return left < kLookSoon && left > -kLookSoon;
}

// False when the thread shall leave.
bool CopyQueue::pause() {
  const Nanoseconds running = parts_.empty() ? Nanoseconds(0) : world_.clock.now() - moved_at_;
  std::unique_lock lock(mutex_);
  drained_ = parts_.empty();
  if (abandoned_ || (stopping_ && drained_)) return false;
  if (drained_ && !moving_) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  } else if (!is_about_to_run_dry(running)) {
    wake_.wait_for(lock, std::clamp<Nanoseconds>(running / 16, kLookSoon, kLookLate));
  }
  return true;
}

}  // namespace kvd::kernels::cuda
