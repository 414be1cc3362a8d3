#include "kvd/tiers/disk/workers/pool.hpp"

#include <pthread.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "kvd/tiers/disk/files/file_limit.hpp"

namespace kvd::disk {
namespace {

std::int64_t call(const Operation& operation) {
  const auto count = static_cast<int>(operation.parts.size());
  for (;;) {
    const auto moved =
        operation.write
            ? ::pwritev(operation.fd, operation.parts.data(), count, operation.offset.value)
            : ::preadv(operation.fd, operation.parts.data(), count, operation.offset.value);
    if (moved >= 0) return moved;
    if (errno != EINTR) return -errno;
  }
}

}  // namespace

Result<std::unique_ptr<Pool>> Pool::open(std::size_t threads) {
  KVD_ASSIGN_OR_RETURN(EventFd event, EventFd::make());
  std::unique_ptr<Pool> pool(new Pool(std::move(event)));
  try {
    while (pool->threads_.size() < threads) {
      pool->threads_.emplace_back([self = pool.get()] { self->run(); });
      ::pthread_setname_np(pool->threads_.back().native_handle(), "kvd-disk-io");
    }
  } catch (const std::system_error&) {
    return make_error(ErrorCode::kUnavailable, "no thread for disk I/O: raise RLIMIT_NPROC");
  }
  return pool;
}

Pool::~Pool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::submit(const Operation& operation) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(&operation);
  }
  wake_.notify_one();
}

void Pool::reap(std::vector<Outcome>& outcomes) {
  done_event_.drain();  // first: requests that end from here on signal again
  const std::lock_guard lock(mutex_);
  outcomes.insert(outcomes.end(), done_.begin(), done_.end());
  done_.clear();
}

Status Pool::add_slab(std::span<std::byte>) {
  return make_error(ErrorCode::kUnsupported, "memory is registered with io_uring only");
}

void Pool::run() {
  const NoFileSizeSignal no_signal;
  for (;;) {
    const Operation* operation = nullptr;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      operation = std::exchange(waiting_.front(), nullptr);
      waiting_.pop_front();
    }
    const Outcome outcome{operation->id, call(*operation)};
    {
      const std::lock_guard lock(mutex_);
      done_.push_back(outcome);
    }
    done_event_.signal();
  }
}

}  // namespace kvd::disk
