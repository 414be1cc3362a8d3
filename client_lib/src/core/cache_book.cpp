#include "client_lib/src/core/cache_book.hpp"

#include <algorithm>
#include <string>

#include "client_lib/src/memory/fence.hpp"
#include "client_lib/src/memory/futex.hpp"
#include "ipc/wire/messages.hpp"

namespace kvd::client {
namespace {

std::atomic<std::uint64_t>& word_of(Session& session, std::uint64_t ticket) {
  return session.page().cache_tickets[ticket % shm::kCacheTickets];
}

}  // namespace

std::uint64_t CacheBook::add(const std::shared_ptr<Session>& session, Known known) {
  const std::lock_guard lock(mutex_);
  caches_[++last_cache_] = {session, known};
  return last_cache_;
}

Result<CacheBook::Known> CacheBook::of_daemon(std::uint64_t cache,
                                              const std::shared_ptr<Session>& session) const {
  const std::lock_guard lock(mutex_);
  const auto found = caches_.find(cache);
  if (found == caches_.end()) {
    return make_error(ErrorCode::kNotFound,
                      "cache " + std::to_string(cache) + " is not one of this client's");
  }
  if (found->second.session.lock() == session) return found->second.known;
  return make_error(ErrorCode::kUnavailable,
                    "the daemon that cache " + std::to_string(cache) +
                        " was opened with is gone: allocate its region and open it again");
}

void CacheBook::forget(std::uint64_t cache) {
  const std::lock_guard lock(mutex_);
  caches_.erase(cache);
}

Result<std::uint64_t> CacheBook::begin(const std::shared_ptr<Session>& session) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < places_.size(); ++i) {
    Place& place = place_of(++last_ticket_);
    if (place.session != nullptr) continue;
    place = {last_ticket_, session, State::kPending, true};
    return last_ticket_;
  }
  return make_error(ErrorCode::kWouldBlock,
                    "256 copies are under way, or were not polled since: poll them");
}

void CacheBook::answered(std::uint64_t ticket, bool taken) {
  const std::lock_guard lock(mutex_);
  Place& answered = place_of(ticket);
  const std::shared_ptr<Session> session = answered.session;
  answered.unsure = false;
  if (!taken) answered = {};
  for (Place& place : places_) {
    if (!place.unsure || place.session != session || place.ticket > ticket) continue;
    place.unsure = false;
    const std::uint64_t word = word_of(*session, place.ticket).load(std::memory_order_acquire);
    if (word >> 2 != place.ticket) place.state = State::kFailed, place.session = nullptr;
  }
}

void CacheBook::unanswered(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  place_of(ticket).unsure = true;
}

// The page is poisoned once the daemon has hung up, and then it copies no more.
CacheBook::State CacheBook::look(Place& place) const {
  if (place.session == nullptr) return place.state;
  const std::uint64_t word = word_of(*place.session, place.ticket).load(std::memory_order_acquire);
  const bool said = word >> 2 == place.ticket;
  const auto state = said ? static_cast<wire::TicketState>(word & 3) : wire::TicketState::kPending;
  if (state == wire::TicketState::kPending && check_poison(place.session->page()).ok()) {
    return State::kPending;
  }
  place.state = state == wire::TicketState::kDone ? State::kDone : State::kFailed;
  place.session = nullptr;
  return place.state;
}

CacheBook::State CacheBook::poll(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  Place& place = place_of(ticket);
  return ticket != 0 && place.ticket == ticket ? look(place) : State::kFailed;
}

Status CacheBook::wait(std::span<const std::uint64_t> tickets, TimePoint deadline,
                       const Clock& clock) {
  for (const std::uint64_t ticket : tickets) {
    while (poll(ticket) == State::kPending) {
      const Nanoseconds left = deadline - clock.now();
      if (left <= Nanoseconds(0)) {
        return make_error(ErrorCode::kDeadlineExceeded,
                          "ticket " + std::to_string(ticket) + " is not over yet");
      }
      std::shared_ptr<Session> session;
      {
        const std::lock_guard lock(mutex_);
        const Place& place = place_of(ticket);
        if (place.ticket == ticket) session = place.session;
      }
      if (session == nullptr) continue;
      std::atomic<std::uint64_t>& word = word_of(*session, ticket);
      const std::uint64_t seen = word.load(std::memory_order_acquire);
      const bool over = seen >> 2 == ticket && (seen & 3) != 0;
      if (!over) futex_wait(word, seen, std::min(left, kLookAgain));
    }
  }
  return {};
}

}  // namespace kvd::client
