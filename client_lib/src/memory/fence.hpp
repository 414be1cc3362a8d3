#pragma once

#include <atomic>
#include <cstdint>

#include "ipc/shm/layout.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"

namespace kvd::client {

/// Waits on the fence words of a session's page (safety rules 1 and 2).
/// Owner:   thread-safe, stateless

/// Unavailable once the page is poisoned: tokens and KV of the step are to be dropped.
Status check_poison(const shm::ClientPage& page);

/// Returns when the H2D fence has reached `ticket`, or fails with Unavailable (poisoned) or
/// DeadlineExceeded.
Status wait_for_ticket(const shm::ClientPage& page, Ticket ticket, TimePoint deadline,
                       const Clock& clock);

/// The same for the layers' fence and `mark`, a layer_mark.
Status wait_for_layers(const shm::ClientPage& page, std::uint64_t mark, TimePoint deadline,
                       const Clock& clock);

/// Returns when a D2H copy has completed since the call, or the deadline has come.
Status wait_for_d2h(const shm::ClientPage& page, TimePoint deadline, const Clock& clock);

/// Ends the waits of streams on the page's fences, which no futex reaches. Repeat it while the page
/// is in use: a copy that was under way when the session ended may still overwrite the word with
/// its ticket. Precondition: the page is poisoned.
void release_fences(shm::ClientPage& page);

/// Poisons the page and ends all waits on it.
void poison(shm::ClientPage& page);

}  // namespace kvd::client
