#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/vocabulary/check.hpp"

namespace kvd::pool {

/// Which slots of one slab are free, by index only: bytes are index times stride, so the same list
/// serves every tier and the simulator. A bitmap instead of a stack, because copies merge
/// neighbouring slots into one run: it hands out contiguous indices where it can.
/// Source: kvd design.
/// Cost:   put O(1); take O(wanted + slots / 64), more only where free slots are scattered.
class FreeSlots {
 public:
  FreeSlots() = default;
  explicit FreeSlots(std::uint32_t slots);  ///< all free

  [[nodiscard]] std::uint32_t count() const { return count_; }
  [[nodiscard]] bool contains(std::uint32_t index) const {
    return index < slots_ && (words_[index / kWordBits] & bit(index)) != 0;
  }

  /// The first run of `wanted` neighbours; where there is none, the lowest free indices. Ascending.
  /// Precondition: wanted <= count().
  [[nodiscard]] std::vector<std::uint32_t> take(std::uint32_t wanted);
  /// Precondition: not contained.
  void put(std::uint32_t index) {
    KVD_CHECK(index < slots_ && !contains(index), "a slot was freed twice or does not exist");
    words_[index / kWordBits] |= bit(index);
    first_word_ = std::min<std::size_t>(first_word_, index / kWordBits);
    ++count_;
  }

 private:
  static constexpr std::uint32_t kWordBits = 64;
  static constexpr std::uint64_t bit(std::uint32_t index) {
    return std::uint64_t{1} << index % kWordBits;
  }
  [[nodiscard]] std::uint32_t next_free(std::uint32_t from) const;  ///< slots_ if none
  [[nodiscard]] std::uint32_t next_taken(std::uint32_t from) const;
  [[nodiscard]] std::uint32_t start_for(std::uint32_t wanted) const;

  std::vector<std::uint64_t> words_;  ///< bit set: free; bits past slots_ stay clear
  std::size_t first_word_ = 0;        ///< no free slot lies in a word before it
  std::uint32_t slots_ = 0;
  std::uint32_t count_ = 0;
};

}  // namespace kvd::pool
