#include "client_lib/src/memory/futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace kvd::client {
namespace {

/// The half of the word that the kernel compares: little-endian, so the low one comes first.
const void* low_half(const std::atomic<std::uint64_t>& word) { return &word; }

}  // namespace

void futex_wait(const std::atomic<std::uint64_t>& word, std::uint64_t seen, Nanoseconds timeout) {
  const timespec relative{timeout.count() / 1'000'000'000, timeout.count() % 1'000'000'000};
  ::syscall(SYS_futex, low_half(word), FUTEX_WAIT, static_cast<std::uint32_t>(seen), &relative,
            nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint64_t>& word) {
  ::syscall(SYS_futex, low_half(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace kvd::client
