#include "kernels/device/fence.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <climits>

namespace kvd::kernels {

static_assert(std::endian::native == std::endian::little,
              "the low half of a fence word comes first");
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(*Fence{}.word) == 8);

void publish(const Fence& fence) {
  if (fence.word == nullptr) return;
  // The word never goes backwards, in whatever order batches are issued: a ticket that was reached
  // stays reached.
  std::uint64_t there = fence.word->load(std::memory_order_relaxed);
  while (there < fence.value &&
         !fence.word->compare_exchange_weak(there, fence.value, std::memory_order_release,
                                            std::memory_order_relaxed)) {
  }
  wake(fence);
}

void wake(const Fence& fence) {
  // Not FUTEX_PRIVATE: the waiter is another process. A failed wake costs the waiter its timeout.
  ::syscall(SYS_futex, fence.word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace kvd::kernels
