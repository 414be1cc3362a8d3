#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "ipc/vocabulary/units.hpp"

namespace kvd::client {

/// poison() may come between a look at a page's words and the sleep, and only one word can be slept
/// on; so nobody sleeps longer than this without looking again.
constexpr Nanoseconds kLookAgain = std::chrono::milliseconds(20);

/// Sleeps while the low 32 bits of the shared word are those of `seen`, at most `timeout`. Returns
/// early for no reason at all now and then, so callers look at the word again.
void futex_wait(const std::atomic<std::uint64_t>& word, std::uint64_t seen, Nanoseconds timeout);

/// Wakes every process that sleeps on the word.
void futex_wake_all(std::atomic<std::uint64_t>& word);

}  // namespace kvd::client
