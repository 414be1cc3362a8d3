#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "kvd/store/index/digest_table.hpp"
#include "kvd/store/memory/pieces.hpp"

namespace kvd::store {

/// The keys that copies under way store, with the copies of each, and which of these keep nothing
/// because the key was dropped meanwhile. Copies are known by their tickets, which grow.
///
/// Owner: control thread. Errors: a key that no copy stores and that ends is a bug and aborts.
/// Cost: O(1); its memory stays for the next ones.
class KeysBeingStored {
 public:
  explicit KeysBeingStored(const TableSecret& secret) : table_(secret) {}

  /// One more copy stores it.
  void begin(const Key& key) {
    const DigestTable::Hash hash = table_.hash(key);
    EntryId id = find(hash, key);
    if (!id) {
      id = make(key);
      table_.insert(hash, id);
    }
    ++at(id).copies;
  }
  /// One copy of it is over. False: the key was dropped while it was under way.
  [[nodiscard]] bool end(const Key& key, Ticket copy) {
    const DigestTable::Hash hash = table_.hash(key);
    const EntryId id = find(hash, key);
    KVD_CHECK(id, "a copy ends that stored no such key");
    const bool wanted = at(id).dropped < copy;
    if (--at(id).copies == 0) {
      table_.erase(hash, id);
      unused_.push_back(id);
    }
    return wanted;
  }
  /// No copy up to this one, the latest, keeps it.
  void drop(const Key& key, Ticket latest) {
    if (const EntryId id = find(table_.hash(key), key)) at(id).dropped = latest;
  }

 private:
  struct Stored {
    Key key;
    std::size_t copies = 0;
    Ticket dropped;
  };
  [[nodiscard]] Stored& at(EntryId id) { return stored_[id.value - 1]; }
  [[nodiscard]] EntryId find(DigestTable::Hash hash, const Key& key) {
    return table_.find(
        hash, [&](EntryId id) { return at(id).key == key; }, probes_);
  }
  [[nodiscard]] EntryId make(const Key& key) {
    if (unused_.empty()) {
      stored_.grow(stored_.size() + 1);
      unused_.emplace_back(static_cast<std::uint32_t>(stored_.size()));
    }
    const EntryId id = unused_.back();
    unused_.pop_back();
    at(id) = {key, 0, {}};
    return id;
  }

  DigestTable table_;
  Pieces<Stored, 256> stored_;  ///< by id - 1
  std::vector<EntryId> unused_;
  std::uint64_t probes_ = 0;
};

}  // namespace kvd::store
