#pragma once

#include <linux/futex.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace kvd::shm {

/// The 32-bit futex word of a keeper mutex, as the daemon sees it (safety rule 8). The kernel sets
/// FUTEX_OWNER_DIED in it when the thread that holds the mutex dies, before the address space is
/// torn down, but wakes waiters only if FUTEX_WAITERS is set; nobody on the client's side ever sets
/// it, as nobody there waits. The word's value is the peer's to forge: it is a hint to stop
/// scheduling, the pidfd decides.
/// Source: glibc's pthread_mutex_t starts with the lock word on every 64-bit Linux (x86-64,
/// aarch64); linux/kernel/futex/core.c, handle_futex_death.
class KeeperWord {
 public:
  explicit KeeperWord(pthread_mutex_t* mutex) : word_(reinterpret_cast<std::uint32_t*>(mutex)) {}

  /// What one look at the word says.
  struct View {
    std::uint32_t value = 0;  ///< to wait on: any change of the word ends the wait

    [[nodiscard]] bool held() const { return (value & FUTEX_TID_MASK) != 0; }
    [[nodiscard]] bool owner_died() const { return (value & FUTEX_OWNER_DIED) != 0; }
  };

  /// Sets FUTEX_WAITERS and returns the word as it stands afterwards. Repeat after every change.
  [[nodiscard]] View arm() const {
    return {std::atomic_ref(*word_).fetch_or(FUTEX_WAITERS, std::memory_order_acq_rel) |
            FUTEX_WAITERS};
  }

  /// For futex_waitv: FUTEX_32, without FUTEX_PRIVATE_FLAG.
  [[nodiscard]] std::uint32_t* address() const { return word_; }

 private:
  std::uint32_t* word_;
};

}  // namespace kvd::shm
