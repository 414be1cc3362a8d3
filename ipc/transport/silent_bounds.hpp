#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace kvd::transport {

/// Connections that have not yet proved what they are for, in the order they came.
using SilentUids = std::map<std::uint64_t, uid_t>;

struct SilentBounds {
  std::size_t per_uid = 64;
  std::size_t total = 256;
};

/// Who has to leave so that one more of `newcomer` fits: those that say nothing must not keep
/// others out. A uid at its bound gives up its own oldest, a full table the oldest of the uid with
/// most.
[[nodiscard]] inline std::optional<std::uint64_t> who_gives_way(const SilentUids& silent,
                                                                uid_t newcomer,
                                                                const SilentBounds& bounds) {
  std::map<uid_t, std::size_t> counts;
  for (const auto& [id, uid] : silent) ++counts[uid];
  uid_t greediest = newcomer;
  if (counts[newcomer] < bounds.per_uid) {
    if (silent.size() < bounds.total) return std::nullopt;
    for (const auto& [uid, count] : counts) {
      if (count > counts[greediest]) greediest = uid;
    }
  }
  for (const auto& [id, uid] : silent) {
    if (uid == greediest) return id;
  }
  return std::nullopt;
}

}  // namespace kvd::transport
