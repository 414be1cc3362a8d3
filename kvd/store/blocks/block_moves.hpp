#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvd/store/blocks/blocks.hpp"

namespace kvd::store {

/// Places in a block table.
using Places = std::span<const std::uint32_t>;

/// Changes many blocks of one table at once, as transfers move them. Blocks without a key, which
/// are most, change the sums once for all of them, and their records are fetched ahead; those with
/// a key go one by one through Blocks.
///
/// Source: kvd design. A rotation moves thousands of blocks, and their records lie anywhere.
///
/// Owner: control thread. Errors: none. A call that breaks a state rule is a bug and aborts. Cost:
/// O(places). Each place is named once in a call.
class BlockMoves {
 public:
  explicit BlockMoves(Blocks& blocks) : blocks_(blocks) {}

  /// Which of the table's first `count` places have no slot in the tier, ascending.
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
  /// Like Blocks::settle. The places below `full` hold full blocks. Precondition: the slots of
  /// blocks without a key are in state filling.
  void settle(BlockTable& table, Places places, Tier tier, std::uint32_t full);
  /// Like Blocks::vacate, for the blocks that no other table names. Returns their slots.
  [[nodiscard]] std::vector<SlotId> vacate_own(BlockTable& table, Places places, Tier tier);

  /// The engine has computed the places `from` to `end` in HBM; those below `full` are full now.
  /// Settles, as Blocks::settle does, all that HBM has.
  void written(BlockTable& table, std::uint32_t from, std::uint32_t end, std::uint32_t full);

 private:
  /// Calls keyed(k) for each k below `count` where the block at place(k) has a key, and own(k,
  /// blocks) for the others. One call of own() is for all neighbours from number k on.
  template <class Place, class Keyed, class Own>
  void walk(const BlockTable& table, std::size_t count, Place place, Keyed keyed, Own own) const;
  /// The same for these places.
  template <class Keyed, class Own>
  void change(const BlockTable& table, Places places, Keyed keyed, Own own);
  /// Prefetches the records of these neighbours of the table, which are needed soon.
  void fetch(const BlockTable& table, std::size_t which) const;
  /// Counts `count` own blocks from place `first` on, which came to be in both tiers or are about
  /// to leave one.
  static void count_doubled(BlockTable& table, std::uint32_t first, std::uint32_t count, int sign);
  /// Counts those of these blocks that are in both tiers. Returns how many.
  static std::int64_t count_doubled(BlockTable& table, std::uint32_t first,
                                    std::span<const Block> blocks, int sign);
  /// Counts the table's own blocks that came into the tier or left it.
  void count(BlockTable& table, Tier tier, std::int64_t change);

  Blocks& blocks_;
};

}  // namespace kvd::store
