#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "ipc/transport/silent_bounds.hpp"
#include "ipc/vocabulary/result.hpp"
#include "kvd/daemon/config/config.hpp"

namespace kvd::daemon {

struct SessionCounts {
  std::size_t open = 0;
  std::size_t ended = 0;  ///< their process lives on and may still map what it was given
};

/// How many connections may wait before they have proved what they are for. All engines of a uid
/// may attach at once, and each may wait long before its first command.
[[nodiscard]] inline transport::SilentBounds silent_bounds(const Config& config) {
  const std::size_t per_uid = std::max<std::size_t>(64, std::size_t{2} * config.max_engines);
  return {per_uid, 4 * per_uid};
}

/// Ended sessions that are kept in mind until their processes are gone.
constexpr std::size_t kMaxEnded = 1024;

/// Whether this many more sessions fit. Domains share the seats evenly, so that one that takes all
/// it can keeps out neither the others nor a domain that has yet to come, which `domains` counts. A
/// domain without sessions may always come: where domains are made as users come, earlier ones may
/// have taken all seats as their shares.
/// Source: kvd design.
/// Errors: QuotaExceeded with what to close or raise.
[[nodiscard]] inline Status check_seats(const SessionCounts& all, const SessionCounts& of_domain,
                                        std::size_t seats, std::size_t max_engines,
                                        std::size_t domains) {
  const auto share = [&](std::size_t all_seats) {
    return std::max<std::size_t>(1, all_seats / domains);
  };
  const auto full = [](const std::string& why) {
    return make_error(ErrorCode::kQuotaExceeded, why);
  };
  if (all.open + seats > max_engines && of_domain.open > 0) {
    return full("engine.max_engines sessions are open: close some or raise it");
  }
  if (of_domain.open + seats > share(max_engines)) {
    return full("the domain has its share of engine.max_engines open, " +
                std::to_string(of_domain.open) + " sessions: close some or raise it");
  }
  const bool many_ended = all.ended >= kMaxEnded && of_domain.ended > 0;
  if (many_ended || of_domain.ended >= share(kMaxEnded)) {
    return full(std::to_string(of_domain.ended) +
                " sessions of the domain ended without goodbye while their processes live on and "
                "may still map what they were given: end those processes");
  }
  return {};
}

}  // namespace kvd::daemon
