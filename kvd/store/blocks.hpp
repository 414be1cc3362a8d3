#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/store/tiers.hpp"

namespace kvd::store {

/// A block of the store; 0: none.
using BlockId = Id<struct BlockIdTag, std::uint32_t>;

/// The KV cache of block_tokens tokens in one layer group, wherever its bytes are.
struct Block {
  ClassId model_class;
  DomainId domain;
  Bytes slot_bytes;                 ///< of the class
  std::array<SlotId, kTiers> at{};  ///< none where the tier does not have it
  std::uint32_t owners = 0;         ///< block tables that name it
  bool sealed = false;              ///< full: never written again

  [[nodiscard]] bool in_all_tiers() const { return !at[0].none() && !at[1].none(); }
};

/// Which blocks a request has: those of every layer group of its first tokens, then of the next.
/// Knows how many slots of each tier they take. Changed by Blocks alone.
class BlockTable {
 public:
  BlockTable() = default;
  explicit BlockTable(std::uint32_t groups) : groups_(groups), doubled_of_(groups) {}

  [[nodiscard]] std::uint32_t groups() const { return groups_; }
  /// Blocks of one layer group.
  [[nodiscard]] std::uint32_t blocks() const {
    return groups_ == 0 ? 0 : static_cast<std::uint32_t>(ids_.size() / groups_);
  }
  /// Blocks of all layer groups. Number i is block i / groups() of group i % groups().
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(ids_.size()); }
  [[nodiscard]] bool empty() const { return ids_.empty(); }
  [[nodiscard]] BlockId operator[](std::uint32_t i) const { return ids_[i]; }
  [[nodiscard]] std::int64_t in(Tier tier) const { return in_[static_cast<std::size_t>(tier)]; }
  /// Blocks in both tiers.
  [[nodiscard]] std::int64_t doubled() const { return doubled_; }
  /// The same of one layer group.
  [[nodiscard]] std::int64_t doubled(std::uint32_t group) const { return doubled_of_[group]; }
  [[nodiscard]] bool all_in(Tier tier) const { return in(tier) == std::int64_t{size()}; }
  /// Grows with every change of what a reader of the table can learn of its blocks.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }
  /// Grows whenever a block gets, leaves or changes its slot in the tier.
  [[nodiscard]] std::uint64_t moves(Tier tier) const {
    return moves_[static_cast<std::size_t>(tier)];
  }

 private:
  friend class Blocks;
  void moved(Tier tier) {
    ++moves_[static_cast<std::size_t>(tier)];
    ++changes_;
  }
  void count_doubled(std::uint32_t i, int sign) {
    doubled_ += sign;
    doubled_of_[i % groups_] += sign;
  }

  std::uint32_t groups_ = 0;
  std::vector<BlockId> ids_;
  std::array<std::int64_t, kTiers> in_{};
  std::int64_t doubled_ = 0;
  std::vector<std::int64_t> doubled_of_;  ///< by layer group
  std::array<std::uint64_t, kTiers> moves_{};
  std::uint64_t changes_ = 0;
};

/// Bytes that blocks of a domain take.
struct Usage {
  std::array<Bytes, kTiers> in{};
  std::int64_t blocks = 0;
};

/// Every block of the node: in which slots its bytes are, and whose it is. A slot that a block
/// gives up is handed to the caller, who alone knows what may still touch it: it goes to
/// Tiers::free or Tiers::hold.
///
/// Source: kvd design (DESIGN.md "Blocks that come and go").
///
/// Owner: control thread. Errors: none. A call that breaks a state rule is a bug and aborts. Cost:
/// what is said per call; usage O(1).
class Blocks {
 public:
  explicit Blocks(Tiers& tiers) : tiers_(tiers) {}

  // ---- reading ----
  [[nodiscard]] const Block& block(BlockId id) const {
    KVD_CHECK(id && id.value <= blocks_.size(), "no such block");
    return blocks_[id.value - 1];
  }
  /// None where the tier does not have the block.
  [[nodiscard]] SlotId slot(const BlockTable& table, std::uint32_t i, Tier tier) const {
    return block(table[i]).at[static_cast<std::size_t>(tier)];
  }
  [[nodiscard]] bool has(const BlockTable& table, std::uint32_t i, Tier tier) const {
    return !slot(table, i, tier).none();
  }
  /// Its bytes are on their way into HBM, from DRAM.
  [[nodiscard]] bool arriving(const BlockTable& table, std::uint32_t i) const {
    const Block& found = block(table[i]);
    return found.in_all_tiers() && state(found, Tier::kHbm) == pool::SlotState::kFilling;
  }
  /// HBM does not have its bytes, or not yet.
  [[nodiscard]] bool missing(const BlockTable& table, std::uint32_t i) const {
    return !has(table, i, Tier::kHbm) || arriving(table, i);
  }
  /// Full, and both tiers have the same bytes.
  [[nodiscard]] bool synced(const BlockTable& table, std::uint32_t i) const {
    const Block& found = block(table[i]);
    return found.in_all_tiers() && state(found, Tier::kHbm) == pool::SlotState::kSealed &&
           state(found, Tier::kDram) == pool::SlotState::kSealed;
  }
  [[nodiscard]] Usage usage(DomainId domain) const;
  /// Every slot that the table's blocks have in the tier.
  template <class F>
  void each_slot(const BlockTable& table, Tier tier, F visit) const {
    for (const BlockId id : table.ids_) {
      const SlotId slot = block(id).at[static_cast<std::size_t>(tier)];
      if (!slot.none()) visit(slot);
    }
  }

  // ---- changing ----
  /// New blocks at the end, in no tier yet; their number is a multiple of the table's groups.
  void extend(BlockTable& table, const Taker& taker, std::uint32_t count);
  /// The slot (state filling) has or will have the block's bytes.
  void place(BlockTable& table, std::uint32_t i, Tier tier, SlotId slot);
  /// The tier gives the block up. Returns its slot; none: it had none.
  [[nodiscard]] SlotId vacate(BlockTable& table, std::uint32_t i, Tier tier);
  /// The tier has the bytes in another slot now (state filling), complete. Returns the old one.
  [[nodiscard]] SlotId relocate(BlockTable& table, std::uint32_t i, Tier tier, SlotId to);
  /// The bytes in the tier are complete: sealed where the block is full, else open.
  void settle(BlockTable& table, std::uint32_t i, Tier tier, bool full);
  /// Ends the blocks beyond `blocks` of each layer group. Returns their slots by tier.
  [[nodiscard]] std::array<std::vector<SlotId>, kTiers> truncate(BlockTable& table,
                                                                 std::uint32_t blocks);

  /// Slots that blocks have in the tier.
  [[nodiscard]] std::size_t slots(Tier tier) const { return in_[static_cast<std::size_t>(tier)]; }
  /// Empty while all sums are those of a walk over all blocks; else the fault in words.
  [[nodiscard]] std::string validate() const;
  /// The same of a table, which must name every block once.
  [[nodiscard]] std::string validate(const BlockTable& table) const;

 private:
  Block& at(BlockId id) { return blocks_[id.value - 1]; }
  [[nodiscard]] pool::SlotState state(const Block& block, Tier tier) const {
    return tiers_.pool(tier).state(block.at[static_cast<std::size_t>(tier)]);
  }
  void count(const Block& block, Tier tier, int sign);

  Tiers& tiers_;
  std::vector<Block> blocks_;  ///< by id - 1
  std::vector<BlockId> unused_;
  std::map<DomainId, Usage> usage_;
  std::array<std::size_t, kTiers> in_{};
};

}  // namespace kvd::store
