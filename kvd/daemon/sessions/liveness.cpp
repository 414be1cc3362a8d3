#include "kvd/daemon/sessions/liveness.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <vector>

namespace kvd::daemon {

namespace {

constexpr std::uint32_t kMaxChanges = 16;

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
    pages_[engine] = {std::move(page)};
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
  while (!stopping_) wait_for_change(changes_);
}

std::optional<std::uint32_t> Liveness::arm(Watched& watched, bool& died) {
  // The kernel wakes waiters of a dead owner only if this bit is set, and whoever changed the word
  // last has cleared it.
  const shm::KeeperWord::View view = watched.page->keeper().arm();
  died = view.owner_died();
  if (died || !view.held()) return std::nullopt;
  // An honest word changes once. A word that changes all the time would keep this thread busy.
  if (watched.last != 0 && view.value != watched.last) ++watched.changes;
  if (watched.changes > kMaxChanges) return std::nullopt;
  watched.last = view.value;
  return view.value;
}

void Liveness::wait_for_change(std::uint32_t changes) {
  std::vector<futex_waitv> words;
  std::vector<EngineId> engines;  // the engines of all words but the first
  std::vector<EngineId> dead;
  Pages held;  // keeps the words mapped while the kernel looks at them
  words.push_back(waiter(&changes_, changes, FUTEX_32 | FUTEX_PRIVATE_FLAG));
  {
    const std::lock_guard lock(mutex_);
    for (auto it = pages_.begin(); it != pages_.end();) {
      bool died = false;
      if (const auto value = arm(it->second, died)) {
        words.push_back(waiter(it->second.page->keeper().address(), *value, FUTEX_32));
        engines.push_back(it->first);
        ++it;
      } else {
        if (died) dead.push_back(it->first);
        it = pages_.erase(it);
      }
    }
    held = pages_;
  }
  for (const EngineId engine : dead) died_(engine);
  // A forged or forgotten bit costs a late hint, never a wrong one: look again once a second.
  timespec until{};
  ::clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += 1;
  const long woken = ::syscall(SYS_futex_waitv, words.data(), static_cast<unsigned>(words.size()),
                               0, &until, CLOCK_MONOTONIC);
  if (woken > 0) count_wake(engines[static_cast<std::size_t>(woken) - 1]);
}

// Its owner may wake us as often as it likes without a change of the word.
void Liveness::count_wake(EngineId engine) {
  const std::lock_guard lock(mutex_);
  const auto it = pages_.find(engine);
  if (it != pages_.end()) ++it->second.changes;
}

}  // namespace kvd::daemon
