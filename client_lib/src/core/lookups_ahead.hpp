#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client_lib/src/attach/session.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd_client/types.hpp"

namespace kvd::client {

/// Lookups that were posted before their answers are needed. The daemon looks while the engine does
/// something else, and no lookup costs a round trip of its own.
/// Owner:   the thread whose turn it is in the client's gate
class LookupsAhead {
 public:
  /// An older answer is asked for anew: what it found may have made way.
  static constexpr Nanoseconds kGoodFor = std::chrono::seconds(1);

  void add(const std::shared_ptr<Session>& session, std::uint64_t cache,
           std::span<const kvd_client::Digest> digests, std::uint64_t number, TimePoint now);
  /// The number of a recent command of this session that asked for these digests, or for these and
  /// more. Each is given once. None: there is no such command.
  [[nodiscard]] std::optional<std::uint64_t> take(const std::shared_ptr<Session>& session,
                                                  std::uint64_t cache,
                                                  std::span<const kvd_client::Digest> digests,
                                                  TimePoint now);

 private:
  struct Asked {
    std::weak_ptr<Session> session;
    std::uint64_t cache = 0;
    std::vector<kvd_client::Digest> digests;
    std::uint64_t number = 0;
    TimePoint when;
  };
  std::deque<Asked> asked_;  ///< the oldest first
};

}  // namespace kvd::client
