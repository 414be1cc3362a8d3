#include "kernels/device/host/copy_queue.hpp"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "kernels/copy/host_copy.hpp"
#include "kernels/device/fence.hpp"

namespace kvd::kernels {

CopyQueue::CopyQueue(Direction direction, const Clock& clock, CompletionBox& finished)
    : clock_(clock), finished_(finished), thread_([this] { run(); }) {
  const std::string thread_name = std::string("kvd-") + name(direction);
  ::pthread_setname_np(thread_.native_handle(), thread_name.c_str());
}

CopyQueue::~CopyQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void CopyQueue::submit(CopyBatch batch) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(batch));
  }
  wake_.notify_all();
}

void CopyQueue::set_link_bandwidth(BytesPerSecond rate) {
  {
    const std::lock_guard lock(mutex_);
    throttle_.set_rate(rate);
    ++rate_changes_;
  }
  wake_.notify_all();
}

void CopyQueue::run() {
  for (CopyBatch batch; next(batch);) {
    Completion done{batch.ticket, {}, {}, {}};
    const TimePoint start = clock_.now();
    for (const CopyExtent& extent : batch.extents) {
      if (!move(extent, batch.in_place)) return;
      done.bytes += extent.length;
    }
    done.busy = clock_.now() - start;
    publish(batch.fence);
    finished_.push(std::move(done));
  }
}

bool CopyQueue::next(CopyBatch& batch) {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  if (stopping_) return false;
  batch = std::move(waiting_.front());
  waiting_.pop_front();
  return true;
}

// False when the queue is stopping; the batch is then dropped.
bool CopyQueue::move(const CopyExtent& extent, bool in_place) {
  Bytes done;
  while (done < extent.length) {
    const Bytes piece = std::min(kPiece, extent.length - done);
    auto* to = reinterpret_cast<void*>(extent.destination + done.size());
    if (extent.source == 0) {
      fill_zero(to, piece.size());
    } else {
      copy_run(to, reinterpret_cast<const void*>(extent.source + done.size()), piece.size());
    }
    if (!cross_link(in_place ? Bytes(0) : piece)) return false;
    done += piece;
  }
  return true;
}

// Holds the piece back until it would have crossed the link, so that neither its fence nor the next
// piece is early. A changed rate lets it pass, because its time was computed with the old one.
bool CopyQueue::cross_link(Bytes length) {
  std::unique_lock lock(mutex_);
  TimePoint now = clock_.now();
  const TimePoint due = throttle_.crossed_at(now, length);
  const std::uint64_t rate_changes = rate_changes_;
  while (!stopping_ && now < due && rate_changes == rate_changes_) {
    wake_.wait_for(lock, due - now);
    now = clock_.now();
  }
  return !stopping_;
}

}  // namespace kvd::kernels
