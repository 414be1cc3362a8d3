#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "ipc/shm/client_page.hpp"
#include "ipc/vocabulary/ids.hpp"

namespace kvd::daemon {

/// Watches the keeper words of all sessions and tells of a death within microseconds, whatever the
/// size of what the dead process had mapped; its pidfd would say so only after the address space is
/// torn down (safety rule 8). It is a hint to stop scheduling and no proof, as the peer can forge
/// the word.
/// Source: kvd/DESIGN.md "Safety rules", rule 8.
/// Owner:  watch and forget are thread-safe; `died` is called on the watching thread.
class Liveness {
 public:
  /// futex_waitv takes 128 words; one is ours, to be woken by.
  static constexpr std::size_t kMaxSessions = 127;

  explicit Liveness(std::function<void(EngineId)> died);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  /// The page stays mapped while it is watched. Call once the client holds its mutex: before, the
  /// bit that the watcher sets would keep the client from taking it.
  /// Errors: QuotaExceeded beyond kMaxSessions.
  [[nodiscard]] Status watch(EngineId engine, std::shared_ptr<shm::ServedClientPage> page);
  void forget(EngineId engine);

 private:
  struct Watched {
    std::shared_ptr<shm::ServedClientPage> page;
    std::uint32_t last = 0;     ///< its word as last armed; 0: not yet
    std::uint32_t changes = 0;  ///< of the word, and wake-ups by it, that were no death
  };
  using Pages = std::map<EngineId, Watched>;

  void run();
  void wait_for_change(std::uint32_t changes);
  /// Arms the word again; without a value it is no longer watched.
  std::optional<std::uint32_t> arm(Watched& watched, bool& died);
  void count_wake(EngineId engine);
  void wake();

  const std::function<void(EngineId)> died_;
  std::mutex mutex_;
  Pages pages_;                             // guarded by mutex_
  std::atomic<std::uint32_t> changes_ = 0;  // futex word: bumped when pages_ changes
  std::atomic<bool> stopping_ = false;
  std::thread thread_;  // last: starts when all else stands
};

}  // namespace kvd::daemon
