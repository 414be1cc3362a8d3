#include "tests/support/fakecuda/streams/stream.hpp"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <thread>

#include "tests/support/fakecuda/driver.hpp"

using fakecuda::Dependency;
using fakecuda::Operation;
using fakecuda::Range;

namespace {

constexpr std::chrono::milliseconds kLook{5};
// About what a hardware queue takes (Oneflow-Inc/oneflow#890, microsoft/mscclpp#516).
constexpr std::size_t kLongestQueue = 1024;

bool overlap(const Range& range, CUdeviceptr start, std::size_t size) {
  return range.start < start + size && start < range.start + range.size;
}

}  // namespace

CUstream_st::CUstream_st(CUcontext owner, unsigned stream_flags, std::uint64_t seed,
                         unsigned hardware_queue)
    : context(owner), flags(stream_flags), queue(hardware_queue), random(seed) {}

// A thread that stands for hardware takes none of the program's signals.
void CUstream_st::start() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([self = shared_from_this()] { self->work(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void CUstream_st::wait_for_room() const {
  std::unique_lock lock(mutex_);
  while (queue_.size() >= kLongestQueue && !given_up()) changed_.wait_for(lock, kLook);
}

std::uint64_t CUstream_st::submit(Operation operation) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(operation));
  changed_.notify_all();
  return ++submitted_;
}

void CUstream_st::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void CUstream_st::abandon() {
  abandoned_ = true;
  close();
}

void CUstream_st::join() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_; });
}

std::uint64_t CUstream_st::submitted() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

bool CUstream_st::done(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return completed_ >= number;
}

bool CUstream_st::wait(std::uint64_t number, const std::function<bool()>& give_up) const {
  std::unique_lock lock(mutex_);
  while (completed_ < number) {
    if (give_up()) return false;
    changed_.wait_for(lock, kLook);
  }
  return true;
}

bool CUstream_st::touches(CUdeviceptr start, std::size_t size) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(queue_.begin(), queue_.end(), [&](const Operation& operation) {
    return std::any_of(operation.touches.begin(), operation.touches.end(),
                       [&](const Range& range) { return overlap(range, start, size); });
  });
}

void CUstream_st::pause() {
  const unsigned most = fakecuda::driver().config.delay_us;
  if (most == 0 || coin(4)) return;
  const auto micros = static_cast<long>(random() % (most + 1));
  const timespec time{micros / 1'000'000, micros % 1'000'000 * 1'000};
  ::nanosleep(&time, nullptr);
}

// Every other slice is another process's.
void CUstream_st::await_time_slice() const {
  const std::chrono::microseconds slice(fakecuda::driver().config.time_slice_us);
  if (slice.count() == 0) return;
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch(); };
  while (now() / slice % 2 != 0 && !given_up()) {
    const timespec look{0, 50'000};
    ::nanosleep(&look, nullptr);
  }
}

void CUstream_st::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) break;
    Operation& front = queue_.front();  // a deque's front stays where it is
    lock.unlock();
    run(front);
    lock.lock();
    // Destroyed without the lock: it may hold the last reference to another stream or to memory.
    Operation finished = std::move(front);
    queue_.pop_front();
    ++completed_;
    changed_.notify_all();
    lock.unlock();
    finished = {};
    lock.lock();
  }
  ended_ = true;
  changed_.notify_all();
}

void CUstream_st::run(Operation& operation) {
  for (const Dependency& dependency : operation.after) {
    dependency.stream->wait(dependency.number, [this] { return given_up(); });
  }
  await_time_slice();
  if (given_up() && !operation.even_if_latched) return;
  const CUresult result = operation.run(*this);
  if (result != CUDA_SUCCESS) fakecuda::latch(context, result);
}
