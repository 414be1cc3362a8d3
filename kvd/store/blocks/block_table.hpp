#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/store/blocks/entries.hpp"
#include "kvd/store/memory/pieces.hpp"

namespace kvd::store {

/// A block of the store; 0: none.
using BlockId = Id<struct BlockIdTag, std::uint32_t>;
/// A row of blocks that has a key; 0: none.
using RowId = Id<struct RowIdTag, std::uint32_t>;

/// The KV cache of block_tokens tokens in one layer group, wherever its bytes are. A node has
/// millions, and a rotation changes thousands: four records fill a cache line.
struct Block {
  std::array<SlotId, kTiers> at{};  ///< none where the tier does not have it
  std::uint32_t owners : 31 = 0;    ///< block tables that name it
  bool sealed : 1 = false;          ///< full: never written again
  RowId row;                        ///< none: nobody can find it, and one table at most names it

  [[nodiscard]] bool in_all_tiers() const { return !at[0].none() && !at[1].none(); }
};

static_assert(sizeof(Block) == 16);

/// What stays true of a block for its life. It lies beside the records, because moves do not need
/// it.
struct BlockKind {
  ClassId model_class;
  DomainId domain;
  Bytes slot_bytes;  ///< of the class
};

/// Which blocks a request has: one for each layer group of its first tokens, then of the next
/// tokens, and so on. Knows how many slots of each tier they take. Only Blocks changes it.
class BlockTable {
 public:
  BlockTable() = default;
  explicit BlockTable(std::uint32_t groups) : groups_(groups), alone_of_(groups) {}

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
  /// Blocks in both tiers that no other table names.
  [[nodiscard]] std::int64_t doubled_alone() const { return doubled_alone_; }
  /// The same of one layer group.
  [[nodiscard]] std::int64_t doubled_alone(std::uint32_t group) const { return alone_of_[group]; }
  [[nodiscard]] bool all_in(Tier tier) const { return in(tier) == std::int64_t{size()}; }
  /// Blocks that are on their way into HBM from DRAM, for this request or another.
  [[nodiscard]] std::int64_t arriving() const { return arriving_; }
  /// Its request is only in DRAM, so it needs no block in HBM.
  [[nodiscard]] bool parked() const { return parked_; }
  void set_parked(bool parked) { parked_ = parked; }
  /// Its engine is dying: blocks that no other table names leave HBM, and no request begins with
  /// them.
  [[nodiscard]] bool doomed() const { return doomed_; }
  void set_doomed(bool doomed) { doomed_ = doomed; }
  /// Grows with every change of what a reader of the table can learn of its blocks.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }
  /// Grows whenever a block gets, leaves or changes its slot in the tier.
  [[nodiscard]] std::uint64_t moves(Tier tier) const {
    return moves_[static_cast<std::size_t>(tier)];
  }

 private:
  friend class Blocks;
  friend class BlockMoves;
  void moved(Tier tier) {
    ++moves_[static_cast<std::size_t>(tier)];
    ++changes_;
  }
  void append(BlockId id) {
    const bool begins_piece = (id.value - 1) % Pieces<Block>::kPiece == 0;
    if (neighbours_.empty() || begins_piece || id.value != neighbours_.back().end_record()) {
      neighbours_.push_back({size(), 0, id});
    }
    ++neighbours_.back().count;
    ids_.push_back(id);
  }
  /// The index of the place in neighbours_.
  [[nodiscard]] std::size_t neighbours_of(std::uint32_t i) const {
    const auto after =
        std::upper_bound(neighbours_.begin(), neighbours_.end(), i,
                         [](std::uint32_t place, const auto& each) { return place < each.place; });
    return static_cast<std::size_t>(after - neighbours_.begin()) - 1;
  }
  /// Extends the table to this many places.
  void cut(std::uint32_t size) {
    ids_.resize(size);
    keyed_ = std::min(keyed_, size);
    while (!neighbours_.empty() && neighbours_.back().place >= size) neighbours_.pop_back();
    if (neighbours_.empty()) return;
    Neighbours& last = neighbours_.back();
    last.count = std::min(last.count, size - last.place);
  }
  void count_doubled(std::uint32_t i, int sign, bool alone) {
    doubled_ += sign;
    if (alone) count_alone(i, sign);
  }
  void count_alone(std::uint32_t i, int sign) {
    doubled_alone_ += sign;
    alone_of_[i % groups_] += sign;
  }

  /// Consecutive places whose records are consecutive, too, within one piece.
  struct Neighbours {
    std::uint32_t place = 0;  ///< of the first
    std::uint32_t count = 0;
    BlockId first;

    [[nodiscard]] std::uint32_t end() const { return place + count; }
    [[nodiscard]] std::uint32_t end_record() const { return first.value + count; }
    friend bool operator==(const Neighbours&, const Neighbours&) = default;
  };

  std::vector<BlockId> ids_;
  std::vector<Neighbours> neighbours_;  ///< all of ids_, in its order
  std::uint32_t keyed_ = 0;             ///< no block from this place on has a key
  std::uint32_t groups_ = 0;
  bool parked_ = false;
  bool doomed_ = false;
  std::array<std::int64_t, kTiers> in_{};
  std::int64_t arriving_ = 0;
  std::int64_t doubled_ = 0;
  std::int64_t doubled_alone_ = 0;
  std::array<std::uint64_t, kTiers> moves_{};
  std::uint64_t changes_ = 0;
  std::vector<std::int64_t> alone_of_;  ///< by layer group
  BlockKind kind_;                      ///< of the blocks that it was extended by
};

/// The sealed blocks of all layer groups for the same tokens, found by one key. Several tables may
/// name them; while none does they are cached.
struct Row {
  EntryId key;                      ///< in the index of the blocks' domain
  std::uint32_t number = 0;         ///< of the block in every table that names it
  std::vector<BlockId> blocks;      ///< by layer group
  std::vector<BlockTable*> owners;  ///< the tables that name them, which stay where they are
};

/// Bytes that blocks of a domain and class take.
struct Usage {
  std::array<Bytes, kTiers> owned{};
  std::array<Bytes, kTiers> cached{};  ///< of these no table is left
  std::int64_t blocks = 0;

  Usage& operator+=(const Usage& other) {
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
      owned[tier] += other.owned[tier];
      cached[tier] += other.cached[tier];
    }
    blocks += other.blocks;
    return *this;
  }
  friend bool operator==(const Usage&, const Usage&) = default;
};

}  // namespace kvd::store
