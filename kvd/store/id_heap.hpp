#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "kvd/store/entries.hpp"

namespace kvd::store {

/// Entries by a number, the least first; of equals the older id. A binary heap that knows where
/// each entry stands, so that any can be taken out. Owner: control thread. Cost: O(log size) a
/// change.
class IdHeap {
 public:
  [[nodiscard]] bool contains(EntryId id) const {
    return id.value < place_.size() && place_[id.value] != kNone;
  }
  [[nodiscard]] EntryId least() const { return nodes_.empty() ? EntryId() : nodes_.front().id; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] std::size_t allocated_bytes() const {
    return nodes_.capacity() * sizeof(Node) + place_.capacity() * sizeof(place_[0]);
  }

  /// Precondition: not there.
  void insert(EntryId id, double number) {
    if (id.value >= place_.size()) place_.resize(id.value + 1, kNone);
    KVD_CHECK(place_[id.value] == kNone, "the entry is in the heap already");
    nodes_.push_back({number, id});
    place_[id.value] = last();
    up(last());
  }
  /// Precondition: there.
  void erase(EntryId id) {
    KVD_CHECK(contains(id), "the entry is not in the heap");
    const std::uint32_t hole = place_[id.value];
    exchange(hole, last());
    nodes_.pop_back();
    place_[id.value] = kNone;
    if (hole == nodes_.size()) return;
    up(hole);
    down(hole);
  }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  struct Node {
    double number;
    EntryId id;
    friend auto operator<=>(const Node&, const Node&) = default;
  };

  [[nodiscard]] std::uint32_t last() const { return static_cast<std::uint32_t>(nodes_.size() - 1); }
  void exchange(std::uint32_t a, std::uint32_t b) {
    std::swap(nodes_[a], nodes_[b]);
    place_[nodes_[a].id.value] = a;
    place_[nodes_[b].id.value] = b;
  }
  void up(std::uint32_t i) {
    for (; i > 0 && nodes_[i] < nodes_[(i - 1) / 2]; i = (i - 1) / 2) exchange(i, (i - 1) / 2);
  }
  void down(std::uint32_t i) {
    while (2 * i + 1 < nodes_.size()) {
      std::uint32_t child = 2 * i + 1;
      if (child < last() && nodes_[child + 1] < nodes_[child]) ++child;
      if (!(nodes_[child] < nodes_[i])) return;
      exchange(i, child);
      i = child;
    }
  }

  std::vector<Node> nodes_;
  std::vector<std::uint32_t> place_;  ///< in nodes_, by entry
};

}  // namespace kvd::store
