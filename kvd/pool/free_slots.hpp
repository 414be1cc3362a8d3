#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "kvd/pool/slot_runs.hpp"

namespace kvd::pool {

/// Which slots of one slab are free, by index only: bytes are index times stride, so the same list
/// serves every tier and the simulator. A bitmap instead of a stack, because copies merge
/// neighbouring slots into one run: it hands out contiguous indices where it can.
/// Source: kvd design.
/// Cost:   put O(run / 64); take O(runs + slots / 64), more only where free slots are scattered.
class FreeSlots {
 public:
  FreeSlots() = default;
  explicit FreeSlots(std::uint32_t slots);  ///< all free

  [[nodiscard]] std::uint32_t count() const { return count_; }
  [[nodiscard]] bool contains(std::uint32_t index) const {
    return index < slots_ && (words_[index / kWordBits] & bit(index)) != 0;
  }

  /// The first run of `wanted` neighbours; where there is none, the lowest free indices. Ascending.
  /// Calls visit(run) for each run of them. Precondition: wanted <= count().
  template <class F>
  void take(std::uint32_t wanted, F visit) {
    KVD_CHECK(wanted <= count_, "more slots taken from a slab than it has free");
    count_ -= wanted;
    for (std::uint32_t from = wanted == 0 ? 0 : start_for(wanted); wanted > 0;) {
      const SlotRun run = run_at(from, wanted);
      clear(run);
      visit(run);
      from = run.first + run.count;
      wanted -= run.count;
    }
  }
  /// Precondition: none of them is contained.
  void put(SlotRun run);

 private:
  static constexpr std::uint32_t kWordBits = 64;
  static constexpr std::uint64_t bit(std::uint32_t index) {
    return std::uint64_t{1} << index % kWordBits;
  }
  [[nodiscard]] std::uint32_t next_free(std::uint32_t from) const;  ///< slots_ if none
  [[nodiscard]] std::uint32_t next_taken(std::uint32_t from) const;
  [[nodiscard]] std::uint32_t start_for(std::uint32_t wanted) const;
  /// The first free neighbours from there on, at most this many.
  [[nodiscard]] SlotRun run_at(std::uint32_t from, std::uint32_t most) const;
  void clear(SlotRun run);
  [[nodiscard]] bool any_free(SlotRun run) const;
  /// Calls visit(word, mask) for each word that the run has bits in.
  template <class F>
  static void each_word(SlotRun run, F visit);

  std::vector<std::uint64_t> words_;  ///< bit set: free; bits past slots_ stay clear
  std::size_t first_word_ = 0;        ///< no free slot lies in a word before it
  std::uint32_t slots_ = 0;
  std::uint32_t count_ = 0;
};

}  // namespace kvd::pool
