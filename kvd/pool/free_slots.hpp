#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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
  [[nodiscard]] bool contains(std::uint32_t index) const;

  /// The first run of `wanted` neighbours; where there is none, the lowest free indices. Ascending.
  /// Precondition: wanted <= count().
  [[nodiscard]] std::vector<std::uint32_t> take(std::uint32_t wanted);
  /// Precondition: not contained.
  void put(std::uint32_t index);

 private:
  [[nodiscard]] std::uint32_t next_free(std::uint32_t from) const;  ///< slots_ if none
  [[nodiscard]] std::uint32_t next_taken(std::uint32_t from) const;
  [[nodiscard]] std::uint32_t start_for(std::uint32_t wanted) const;
  void remove(std::uint32_t index);

  std::vector<std::uint64_t> words_;  ///< bit set: free; bits past slots_ stay clear
  std::size_t first_word_ = 0;        ///< no free slot lies in a word before it
  std::uint32_t slots_ = 0;
  std::uint32_t count_ = 0;
};

}  // namespace kvd::pool
