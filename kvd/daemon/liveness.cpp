#include "kvd/daemon/liveness.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <vector>

namespace kvd::daemon {

namespace {

futex_waitv waiter(const void* word, std::uint32_t value, std::uint32_t flags) {
  futex_waitv entry{};
  entry.uaddr = reinterpret_cast<std::uintptr_t>(word);
  entry.val = value;
  entry.flags = flags;
  return entry;
}

}  // namespace

Liveness::Liveness(std::function<void(EngineId)> died)
    : died_(std::move(died)), thread_([this] { run(); }) {}

Liveness::~Liveness() {
  stopping_ = true;
  wake();
  thread_.join();
}

void Liveness::wake() {
  ++changes_;
  ::syscall(SYS_futex, &changes_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

Status Liveness::watch(EngineId engine, std::shared_ptr<shm::ServedClientPage> page) {
  {
    const std::lock_guard lock(mutex_);
    if (pages_.size() >= kMaxSessions) {
      return make_error(ErrorCode::kQuotaExceeded,
                        "127 sessions are the most one daemon watches: close some");
    }
    pages_[engine] = std::move(page);
  }
  wake();
  return {};
}

void Liveness::forget(EngineId engine) {
  {
    const std::lock_guard lock(mutex_);
    pages_.erase(engine);
  }
  wake();
}

void Liveness::run() {
  while (!stopping_) {
    const std::uint32_t changes = changes_;
    Pages pages;
    {
      const std::lock_guard lock(mutex_);
      pages = pages_;
    }
    wait_for_change(pages, changes);
  }
}

void Liveness::wait_for_change(const Pages& pages, std::uint32_t changes) {
  std::vector<futex_waitv> words;
  words.push_back(waiter(&changes_, changes, FUTEX_32 | FUTEX_PRIVATE_FLAG));
  for (const auto& [engine, page] : pages) {
    const shm::KeeperWord word = page->keeper();
    // The kernel wakes waiters of a dead owner only if this bit is set, and whoever changed the
    // word last has cleared it.
    const shm::KeeperWord::View view = word.arm();
    if (view.owner_died() || !view.held()) {
      if (view.owner_died()) died_(engine);
      const std::lock_guard lock(mutex_);
      pages_.erase(engine);
      continue;
    }
    words.push_back(waiter(word.address(), view.value, FUTEX_32));
  }
  // A forged or forgotten bit costs a late hint, never a wrong one: look again once a second.
  timespec until{};
  ::clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += 1;
  ::syscall(SYS_futex_waitv, words.data(), static_cast<unsigned>(words.size()), 0, &until,
            CLOCK_MONOTONIC);
}

}  // namespace kvd::daemon
