#include "client_lib/src/fence.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>

#include "client_lib/src/futex.hpp"

namespace kvd::client {
namespace {

/// poison() may come between a look at the words and the sleep, and only the fence word can be
/// slept on; so nobody sleeps longer than this without looking again.
constexpr Nanoseconds kLookAgain = std::chrono::milliseconds(20);

/// Ends every wait. A stream compares by the sign of a 64-bit difference, so the largest number
/// would be below every ticket.
constexpr std::uint64_t kReleased = std::numeric_limits<std::int64_t>::max();

}  // namespace

Status check_poison(const shm::ClientPage& page) {
  if (page.poison.load(std::memory_order_acquire) == 0) return {};
  return make_error(ErrorCode::kUnavailable,
                    "the daemon is gone and its copies with it; drop this step and submit again");
}

Status wait_for_ticket(const shm::ClientPage& page, Ticket ticket, TimePoint deadline,
                       const Clock& clock) {
  for (;;) {
    const std::uint64_t done = page.fence_h2d.load(std::memory_order_acquire);
    KVD_TRY(check_poison(page));
    if (done >= ticket.value) return {};
    const Nanoseconds left = deadline - clock.now();
    if (left <= Nanoseconds(0)) {
      return make_error(ErrorCode::kDeadlineExceeded, "ticket " + std::to_string(ticket.value) +
                                                          " is not complete, the fence is at " +
                                                          std::to_string(done));
    }
    futex_wait(page.fence_h2d, done, std::min(left, kLookAgain));
  }
}

Status wait_for_d2h(const shm::ClientPage& page, TimePoint deadline, const Clock& clock) {
  const std::uint64_t before = page.fence_d2h.load(std::memory_order_acquire);
  for (;;) {
    KVD_TRY(check_poison(page));
    const Nanoseconds left = deadline - clock.now();
    if (left <= Nanoseconds(0)) return {};
    futex_wait(page.fence_d2h, before, std::min(left, kLookAgain));
    if (page.fence_d2h.load(std::memory_order_acquire) != before) return {};
  }
}

void release_fences(shm::ClientPage& page) {
  for (auto* fence : {&page.fence_h2d, &page.fence_d2h}) {
    if (fence->load(std::memory_order_acquire) != kReleased) {
      fence->store(kReleased, std::memory_order_release);
    }
  }
}

void poison(shm::ClientPage& page) {
  page.poison.store(1, std::memory_order_release);
  release_fences(page);
  futex_wake_all(page.fence_h2d);
  futex_wake_all(page.fence_d2h);
}

}  // namespace kvd::client
