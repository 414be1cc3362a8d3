#include "ipc/transport/closer.hpp"

#include <thread>
#include <utility>

namespace kvd::transport {

Closer::Closer() : queue_(std::make_shared<Queue>()) {
  std::thread([queue = queue_] { run(*queue); }).detach();
}

Closer::~Closer() {
  const std::lock_guard lock(queue_->mutex);
  queue_->ending = true;
  queue_->changed.notify_one();
}

void Closer::close(UniqueFd fd) {
  const std::lock_guard lock(queue_->mutex);
  queue_->fds.push_back(std::move(fd));
  queue_->changed.notify_one();
}

void Closer::run(Queue& queue) {
  while (true) {
    std::deque<UniqueFd> fds;
    {
      std::unique_lock lock(queue.mutex);
      queue.changed.wait(lock, [&] { return queue.ending || !queue.fds.empty(); });
      if (queue.fds.empty()) return;
      fds.swap(queue.fds);
    }
  }
}

}  // namespace kvd::transport
