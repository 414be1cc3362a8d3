#include "kernels/attention/workers.hpp"

#include <algorithm>

namespace kvd::kernels {

Workers::Workers(std::uint32_t threads) {
  for (std::uint32_t piece = 1; piece < threads; ++piece) {
    threads_.emplace_back([this, piece] { serve(piece); });
  }
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begins_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::do_piece(std::size_t piece) const {
  if (piece < pieces_) (*work_)(items_ * piece / pieces_, items_ * (piece + 1) / pieces_);
}

void Workers::run(std::size_t items, std::size_t grain, const Range& work) {
  if (items == 0) return;
  const std::size_t most = std::max<std::size_t>(items / std::max<std::size_t>(grain, 1), 1);
  const std::size_t pieces = std::min(threads_.size() + 1, most);
  if (pieces == 1) {
    work(0, items);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    items_ = items;
    pieces_ = pieces;
    busy_ = threads_.size();
    ++round_;
  }
  begins_.notify_all();
  do_piece(0);
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return busy_ == 0; });
}

void Workers::serve(std::size_t piece) {
  std::unique_lock lock(mutex_);
  for (std::uint64_t seen = 0;;) {
    begins_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    lock.unlock();
    do_piece(piece);
    lock.lock();
    if (--busy_ == 0) ended_.notify_one();
  }
}

}  // namespace kvd::kernels
