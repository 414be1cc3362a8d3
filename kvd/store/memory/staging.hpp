#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ipc/vocabulary/ids.hpp"

namespace kvd::store {

/// HBM slots that the layers of one request are streamed through: one for each block of its table
/// that some layer group lacks in HBM, and read by all those groups in turn. Never part of a block.
/// Each rank of a tensor-parallel group has its own: places count through blocks, then ranks.
/// Source: OrbitFlow sec. 4.1.
class Staging {
 public:
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// The slot at a place; none: it has no slot.
  [[nodiscard]] SlotId slot(std::uint32_t place) const {
    return place < slots_.size() ? slots_[place] : SlotId();
  }
  /// By place; none where a block needs no slot.
  [[nodiscard]] const std::vector<SlotId>& slots() const { return slots_; }

  /// Grows with every change.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }

  /// Precondition: there is none at the place.
  void put(std::uint32_t place, SlotId slot) {
    if (slots_.size() <= place) slots_.resize(std::size_t{place} + 1);
    slots_[place] = slot;
    ++count_;
    ++changes_;
  }
  /// Takes all its slots away.
  [[nodiscard]] std::vector<SlotId> take() {
    std::vector<SlotId> taken = std::exchange(slots_, {});
    std::erase_if(taken, [](SlotId slot) { return slot.none(); });
    if (count_ > 0) ++changes_;
    count_ = 0;
    return taken;
  }

 private:
  std::vector<SlotId> slots_;
  std::int64_t count_ = 0;
  std::uint64_t changes_ = 0;
};

}  // namespace kvd::store
