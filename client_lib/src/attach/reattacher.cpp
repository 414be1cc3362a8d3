#include "client_lib/src/attach/reattacher.hpp"

#include <chrono>
#include <utility>

#include "client_lib/src/memory/signals_blocked.hpp"

namespace kvd::client {

Reattacher::Reattacher(std::function<void()> attach_where_lost)
    : attach_where_lost_(std::move(attach_where_lost)) {
  const AllSignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

Reattacher::~Reattacher() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void Reattacher::run() {
  constexpr std::chrono::seconds kPeriod{1};
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kPeriod, [&] { return ending_; })) {
    lock.unlock();
    attach_where_lost_();
    lock.lock();
  }
}

}  // namespace kvd::client
