#include "client_lib/src/memory/fence.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "client_lib/src/memory/futex.hpp"
#include "ipc/transport/spin.hpp"

namespace kvd::client {
namespace {

/// Ends every wait. A stream compares by the sign of a 64-bit difference, so the largest number
/// would be below every ticket.
constexpr std::uint64_t kReleased = std::numeric_limits<std::int64_t>::max();

/// Waits until the word has reached `value`; `late` says what did not come in time.
template <class Late>
Status wait_for(const shm::ClientPage& page, const std::atomic<std::uint64_t>& word,
                std::uint64_t value, TimePoint deadline, const Clock& clock, Late late) {
  for (;;) {
    const std::uint64_t done = word.load(std::memory_order_acquire);
    KVD_TRY(check_poison(page));
    if (done >= value) return {};
    const Nanoseconds left = deadline - clock.now();
    if (left <= Nanoseconds(0)) return make_error(ErrorCode::kDeadlineExceeded, late(done));
    futex_wait(word, done, std::min(left, kLookAgain));
  }
}

/// Looks for a while before it sleeps, where cores are free: the next layer often follows at once.
void look_for(const std::atomic<std::uint64_t>& word, std::uint64_t value, const Clock& clock) {
  static const Nanoseconds spin = transport::default_spin();
  if (spin.count() == 0) return;
  const TimePoint until = clock.now() + spin;
  while (word.load(std::memory_order_relaxed) < value && clock.now() < until) continue;
}

}  // namespace

Status check_poison(const shm::ClientPage& page) {
  if (page.poison.load(std::memory_order_acquire) == 0) return {};
  return make_error(ErrorCode::kUnavailable,
                    "the daemon is gone and its copies with it; drop this step and submit again");
}

Status wait_for_ticket(const shm::ClientPage& page, Ticket ticket, TimePoint deadline,
                       const Clock& clock) {
  return wait_for(page, page.fence_h2d, ticket.value, deadline, clock, [&](std::uint64_t done) {
    return "ticket " + std::to_string(ticket.value) + " is not complete, the fence is at " +
           std::to_string(done);
  });
}

Status wait_for_layers(const shm::ClientPage& page, std::uint64_t mark, TimePoint deadline,
                       const Clock& clock) {
  look_for(page.fence_layers, mark, clock);
  return wait_for(page, page.fence_layers, mark, deadline, clock, [&](std::uint64_t done) {
    const auto text = [](std::uint64_t at) {
      return std::to_string(at & 0xffff) + " layer groups of iteration " + std::to_string(at >> 16);
    };
    return text(mark) + " are not in HBM yet, only " + text(done) +
           ": tell kvd of every group that is done";
  });
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
  for (auto* fence : {&page.fence_h2d, &page.fence_d2h, &page.fence_layers}) {
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
  futex_wake_all(page.fence_layers);
}

}  // namespace kvd::client
