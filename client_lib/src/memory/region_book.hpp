#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client_lib/src/memory/slab_map.hpp"
#include "client_lib/src/memory/unmap.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "ipc/wire/messages.hpp"

namespace kvd::client {

class Session;

/// The regions a client holds, across the daemons it has known. A fresh daemon counts regions from
/// 1 again, so the number a caller sees is the book's own and never used twice.
/// Owner:   the client, under its mutex
class RegionBook {
 public:
  /// Memory that a daemon granted. The next daemon knows it by the daemon that granted it and by
  /// the id it had there.
  struct Grant {
    RegionId daemon_id;                    ///< its id at the session's daemon
    std::weak_ptr<const Session> session;  ///< whose it is
    wire::ClaimBody claim{};
  };
  /// Slabs behind addresses of a region that grows and shrinks.
  struct Part {
    Grant grant;
    std::vector<std::uint32_t> positions;
  };
  using Parts = std::map<std::uint64_t, Part>;
  struct Entry {
    Grant grant;  ///< of a region that grows and shrinks: its space, without a claim
    std::shared_ptr<RegionMapping> mapping;
    std::optional<Parts> parts;  ///< only of a region that grows and shrinks

    [[nodiscard]] Bytes bytes() const {
      if (!parts) return mapping->range->size();
      Bytes sum;
      for (const auto& [id, part] : *parts) {
        sum += mapping->slab_bytes * static_cast<std::int64_t>(part.positions.size());
      }
      return sum;
    }
  };

  std::uint64_t add(Entry entry) {
    entries_.emplace(++last_, std::move(entry));
    return last_;
  }

  /// Removes the entry; the last holder of its mapping unmaps it.
  std::optional<Entry> take(std::uint64_t id) {
    auto node = entries_.extract(id);
    if (node.empty()) return std::nullopt;
    return std::move(node.mapped());
  }

  /// Null: no such region.
  [[nodiscard]] Entry* find(std::uint64_t id) {
    const auto entry = entries_.find(id);
    return entry == entries_.end() ? nullptr : &entry->second;
  }
  /// A number for a part, as unique as those of regions.
  [[nodiscard]] std::uint64_t next_part() { return ++last_; }
  [[nodiscard]] std::map<std::uint64_t, Entry>& all() { return entries_; }

  /// The region's mapping, for one more holder; null: no such region.
  [[nodiscard]] std::shared_ptr<RegionMapping> mapping(std::uint64_t id) const {
    const auto entry = entries_.find(id);
    return entry == entries_.end() ? nullptr : entry->second.mapping;
  }

  /// What the daemon of the session calls the region; none: it is not of that session.
  [[nodiscard]] std::optional<RegionId> daemon_id(
      std::uint64_t id, const std::shared_ptr<const Session>& session) const {
    const auto entry = entries_.find(id);
    if (entry == entries_.end() || entry->second.grant.session.lock() != session) {
      return std::nullopt;
    }
    return entry->second.grant.daemon_id;
  }

  /// Whether somebody else holds the mapping as well.
  [[nodiscard]] bool lent(std::uint64_t id) const {
    const auto entry = entries_.find(id);
    return entry != entries_.end() && entry->second.mapping.use_count() > 1;
  }
  [[nodiscard]] bool lent() const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const auto& entry) { return entry.second.mapping.use_count() > 1; });
  }

  [[nodiscard]] Bytes total() const {
    Bytes sum;
    for (const auto& [id, entry] : entries_) sum += entry.bytes();
    return sum;
  }

  /// Forgets all regions and unmaps those that nobody else holds, as unmap_when_idle() does.
  bool clear(Nanoseconds limit) {
    std::map<SlabMemory*, std::pair<std::shared_ptr<SlabMemory>, SlabRanges>> by_memory;
    for (auto& [id, entry] : entries_) {
      if (entry.mapping.use_count() > 1) continue;
      auto& [memory, ranges] = by_memory[entry.mapping->memory.get()];
      memory = entry.mapping->memory;
      ranges.push_back(std::move(entry.mapping->range));
    }
    const bool lends = lent();
    entries_.clear();
    bool all = !lends;
    for (auto& [key, of] : by_memory) {
      all = unmap_when_idle(of.first, std::move(of.second), limit) && all;
    }
    return all;
  }

 private:
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, Entry> entries_;
};

}  // namespace kvd::client
