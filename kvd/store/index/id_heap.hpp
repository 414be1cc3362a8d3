#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "kvd/store/blocks/entries.hpp"
#include "kvd/store/memory/pieces.hpp"

namespace kvd::store {

/// Entries by a number, the least first; of equals the older id. A binary heap for each group of
/// them, that knows where each entry stands, so that any can be taken out. Owner: control thread.
/// Cost: O(log size) a change.
class IdHeap {
 public:
  [[nodiscard]] bool contains(EntryId id) const {
    return id.value < place_.size() && place_[id.value] != kNone;
  }
  [[nodiscard]] EntryId least(std::uint32_t group = 0) const {
    return empty(group) ? EntryId() : groups_[group][0].id;
  }
  /// Precondition: the group is not empty.
  [[nodiscard]] double least_number(std::uint32_t group) const { return groups_[group][0].number; }
  /// Precondition: in the group.
  [[nodiscard]] double number(EntryId id, std::uint32_t group) const {
    return groups_[group][place_[id.value] - 1].number;
  }
  [[nodiscard]] bool empty(std::uint32_t group) const {
    return group >= groups_.size() || groups_[group].empty();
  }
  /// More than the number of each group that has an entry.
  [[nodiscard]] std::uint32_t groups() const { return static_cast<std::uint32_t>(groups_.size()); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t allocated_bytes() const {
    std::size_t sum = groups_.capacity() * sizeof(Nodes) + place_.allocated_bytes();
    for (const Nodes& nodes : groups_) sum += nodes.allocated_bytes();
    return sum;
  }

  /// Precondition: in no group.
  void insert(EntryId id, double number, std::uint32_t group = 0) {
    place_.grow(std::size_t{id.value} + 1);
    KVD_CHECK(place_[id.value] == kNone, "the entry is in the heap already");
    if (group >= groups_.size()) groups_.resize(group + 1);
    Nodes& nodes = groups_[group];
    nodes.push_back({number, id});
    place_[id.value] = last(nodes) + 1;
    up(nodes, last(nodes));
    ++size_;
  }
  /// Precondition: in the group.
  void erase(EntryId id, std::uint32_t group = 0) {
    KVD_CHECK(contains(id) && !empty(group), "the entry is not in the heap");
    Nodes& nodes = groups_[group];
    const std::uint32_t hole = place_[id.value] - 1;
    KVD_CHECK(hole < nodes.size() && nodes[hole].id == id, "the entry is in another group");
    exchange(nodes, hole, last(nodes));
    nodes.pop_back();
    place_[id.value] = kNone;
    --size_;
    if (hole == nodes.size()) return;
    up(nodes, hole);
    down(nodes, hole);
  }

 private:
  static constexpr std::uint32_t kNone = 0;
  struct Node {
    double number = 0;
    EntryId id;
    friend auto operator<=>(const Node&, const Node&) = default;
  };
  using Nodes = Pieces<Node, 256>;  // many groups are small

  [[nodiscard]] static std::uint32_t last(const Nodes& nodes) {
    return static_cast<std::uint32_t>(nodes.size() - 1);
  }
  void exchange(Nodes& nodes, std::uint32_t a, std::uint32_t b) {
    std::swap(nodes[a], nodes[b]);
    place_[nodes[a].id.value] = a + 1;
    place_[nodes[b].id.value] = b + 1;
  }
  void up(Nodes& nodes, std::uint32_t i) {
    for (; i > 0 && nodes[i] < nodes[(i - 1) / 2]; i = (i - 1) / 2) {
      exchange(nodes, i, (i - 1) / 2);
    }
  }
  void down(Nodes& nodes, std::uint32_t i) {
    while (2 * i + 1 < nodes.size()) {
      std::uint32_t child = 2 * i + 1;
      if (child < last(nodes) && nodes[child + 1] < nodes[child]) ++child;
      if (!(nodes[child] < nodes[i])) return;
      exchange(nodes, i, child);
      i = child;
    }
  }

  std::vector<Nodes> groups_;
  Pieces<std::uint32_t> place_;  ///< in the nodes of its group, from 1 on, by entry
  std::size_t size_ = 0;
};

}  // namespace kvd::store
