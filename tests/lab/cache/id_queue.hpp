#pragma once

#include <cstddef>
#include <cstdint>

#include "ipc/vocabulary/check.hpp"
#include "kvd/store/blocks/entries.hpp"
#include "kvd/store/memory/pieces.hpp"

namespace kvd::sim {

using store::EntryId;
using store::Pieces;

/// Entries in a row, from the oldest to the newest. Any entry can be taken out or put before
/// another one.
/// Owner: control thread. Cost: O(1).
class IdQueue {
 public:
  IdQueue() { links_.grow(1); }

  [[nodiscard]] bool contains(EntryId id) const {
    return id.value < links_.size() && links_[id.value].linked;
  }
  [[nodiscard]] EntryId oldest() const { return links_[0].newer; }
  /// The next newer entry; none after the newest.
  [[nodiscard]] EntryId newer(EntryId id) const { return links_[id.value].newer; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t allocated_bytes() const { return links_.allocated_bytes(); }

  /// Inserts just older than `next`, or as the newest where `next` is none. Precondition: the entry
  /// is not in the row.
  void insert(EntryId id, EntryId next = {}) {
    links_.grow(std::size_t{id.value} + 1);
    KVD_CHECK(!links_[id.value].linked, "the entry is in the queue already");
    const EntryId before = links_[next.value].older;
    links_[id.value] = {before, next, true};
    links_[before.value].newer = id;
    links_[next.value].older = id;
    ++size_;
  }
  /// Precondition: the entry is in the row.
  void erase(EntryId id) {
    KVD_CHECK(contains(id), "the entry is not in the queue");
    const Link link = links_[id.value];
    links_[link.older.value].newer = link.newer;
    links_[link.newer.value].older = link.older;
    links_[id.value] = {};
    --size_;
  }

 private:
  struct Link {
    EntryId older, newer;
    bool linked = false;
  };
  Pieces<Link> links_;  ///< by entry; number 0, which is no entry, closes the row into a ring
  std::size_t size_ = 0;
};

}  // namespace kvd::sim
