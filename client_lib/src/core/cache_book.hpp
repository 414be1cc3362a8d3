#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "client_lib/src/attach/session.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/result.hpp"
#include "kvd_client/types.hpp"

namespace kvd::client {

/// The caches a client has open, and the copies they make, across the daemons it has known. A fresh
/// daemon counts caches from 1 again, so the number a caller sees is the book's own.
///
/// A ticket takes one of 256 places in the session's page; its number says which. It keeps the
/// place until the caller was told that it is over.
/// Owner:   thread-safe; polling never waits for a call to the daemon.
class CacheBook {
 public:
  using State = kvd_client::TicketState;

  /// A cache as its daemon knows it.
  struct Known {
    std::uint64_t id = 0;
    std::uint32_t lookup_flags = 0;  ///< wire::CacheFlags
  };
  std::uint64_t add(const std::shared_ptr<Session>& session, Known known);
  /// Errors: NotFound; Unavailable for one of a session that is not `session`.
  [[nodiscard]] Result<Known> of_daemon(std::uint64_t cache,
                                        const std::shared_ptr<Session>& session) const;
  void forget(std::uint64_t cache);

  /// A number whose place is free. WouldBlock: 256 tickets are not over, or not polled.
  [[nodiscard]] Result<std::uint64_t> begin(const std::shared_ptr<Session>& session);
  /// The daemon has answered the command. Where it refused, the ticket is free. It has answered all
  /// earlier commands, too, even where the answers came too late: what it has not taken it never
  /// takes.
  void answered(std::uint64_t ticket, bool taken);
  /// Whether the daemon takes the command is not known.
  void unanswered(std::uint64_t ticket);

  [[nodiscard]] State poll(std::uint64_t ticket);
  /// Waits until all tickets are over. Errors: DeadlineExceeded.
  Status wait(std::span<const std::uint64_t> tickets, TimePoint deadline, const Clock& clock);

 private:
  struct Cache {
    std::weak_ptr<Session> session;
    Known known;
  };
  struct Place {
    std::uint64_t ticket = 0;
    std::shared_ptr<Session> session;  ///< none: it is over, and `state` says how
    State state = State::kFailed;
    bool unsure = false;  ///< the daemon may not have got the command
  };

  [[nodiscard]] State look(Place& place) const;
  [[nodiscard]] Place& place_of(std::uint64_t ticket) { return places_[ticket % places_.size()]; }

  mutable std::mutex mutex_;
  std::map<std::uint64_t, Cache> caches_;
  std::array<Place, shm::kCacheTickets> places_;
  std::uint64_t last_cache_ = 0;
  std::uint64_t last_ticket_ = 0;
};

}  // namespace kvd::client
