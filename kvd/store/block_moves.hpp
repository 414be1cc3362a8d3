#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvd/store/blocks.hpp"

namespace kvd::store {

/// Places in a block table.
using Places = std::span<const std::uint32_t>;

/// Many blocks of one table at once, as transfers move them. Blocks without a key, which are most,
/// change the sums once for all of them, and their records are fetched ahead; those with a key go
/// one by one through Blocks.
///
/// Source: kvd design. A rotation moves thousands of blocks, and their records lie anywhere.
///
/// Owner: control thread. Errors: none. A call that breaks a state rule is a bug and aborts. Cost:
/// O(places). Each place is named once in a call.
class BlockMoves {
 public:
  explicit BlockMoves(Blocks& blocks) : blocks_(blocks) {}

  /// Of the table's first `count` places, ascending, those that have no slot in the tier.
  [[nodiscard]] std::vector<std::uint32_t> lacking(const BlockTable& table, std::uint32_t count,
                                                   Tier tier) const;
  struct Copied {
    std::vector<std::uint32_t> lacking;  ///< DRAM does not have them
    std::vector<std::uint32_t> synced;
  };
  /// The first `count` places, ascending. Precondition: no block that this table alone names is
  /// being copied.
  [[nodiscard]] Copied copied(const BlockTable& table, std::uint32_t count) const;

  /// As Blocks::place.
  void place(BlockTable& table, Places places, Tier tier, std::span<const SlotId> slots);
  /// As Blocks::settle; full are the places below `full`. Precondition: the slots of blocks without
  /// a key are in state filling.
  void settle(BlockTable& table, Places places, Tier tier, std::uint32_t full);
  /// As Blocks::vacate, for those that no other table names. Returns their slots.
  [[nodiscard]] std::vector<SlotId> vacate_own(BlockTable& table, Places places, Tier tier);

 private:
  /// Calls visit(place, block).
  template <class F>
  void each(const BlockTable& table, Places places, F visit);
  /// So many blocks without a key, of which `one` is one, came into the tier, or left it.
  void count(BlockTable& table, const Block& one, Tier tier, std::int64_t change);

  Blocks& blocks_;
};

}  // namespace kvd::store
