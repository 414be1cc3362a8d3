#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace kvd::daemon {

/// Connections to the attach socket that have not said hello, in the order they came.
using PendingUids = std::map<std::uint32_t, uid_t>;

constexpr std::size_t kMaxPending = 32;
constexpr std::size_t kMaxPendingPerUid = 8;

/// Who has to leave so that one more of `newcomer` fits: those that say nothing must not keep
/// others out. A uid at its bound gives up its own oldest, a full table the oldest of the uid with
/// most. Source: kvd design.
[[nodiscard]] inline std::optional<std::uint32_t> who_gives_way(const PendingUids& pending,
                                                                uid_t newcomer) {
  std::map<uid_t, std::size_t> counts;
  for (const auto& [id, uid] : pending) ++counts[uid];
  uid_t greediest = newcomer;
  if (counts[newcomer] < kMaxPendingPerUid) {
    if (pending.size() < kMaxPending) return std::nullopt;
    for (const auto& [uid, count] : counts) {
      if (count > counts[greediest]) greediest = uid;
    }
  }
  for (const auto& [id, uid] : pending) {
    if (uid == greediest) return id;
  }
  return std::nullopt;
}

}  // namespace kvd::daemon
