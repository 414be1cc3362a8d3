#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace kvd::transport {

/// Connections that have not yet proved what they are for, in the order they came.
using SilentUids = std::map<std::uint64_t, uid_t>;

/// Both at least one.
struct SilentBounds {
  std::size_t per_uid = 64;
  std::size_t total = 256;
};

/// Which user has to give up a connection so that one more of `newcomer` fits, because silent ones
/// must not keep others out. A newcomer at its bound gives up its own; where the table is full, the
/// uid with the most does.
[[nodiscard]] inline std::optional<uid_t> who_gives_way(const SilentUids& silent, uid_t newcomer,
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
  return greediest;
}

/// Precondition: the uid has one.
[[nodiscard]] inline std::uint64_t oldest_of(const SilentUids& silent, uid_t uid) {
  return std::ranges::find(silent, uid, &SilentUids::value_type::second)->first;
}

}  // namespace kvd::transport
