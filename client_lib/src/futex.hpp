#pragma once

#include <atomic>
#include <cstdint>

#include "ipc/vocabulary/units.hpp"

namespace kvd::client {

/// Sleeps while the low 32 bits of the shared word are those of `seen`, at most `timeout`. Returns
/// early for no reason at all now and then, so callers look at the word again.
void futex_wait(const std::atomic<std::uint64_t>& word, std::uint64_t seen, Nanoseconds timeout);

/// Wakes every process that sleeps on the word.
void futex_wake_all(std::atomic<std::uint64_t>& word);

}  // namespace kvd::client
