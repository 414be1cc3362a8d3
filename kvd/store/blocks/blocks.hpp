#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/store/blocks/block_table.hpp"
#include "kvd/store/memory/pieces.hpp"
#include "kvd/store/memory/tiers.hpp"

namespace kvd::store {

using SlotsByTier = std::array<std::vector<SlotId>, kTiers>;

/// Its bytes are on their way into HBM, from DRAM.
[[nodiscard]] inline bool is_arriving(const Tiers& tiers, const Block& block) {
  return block.in_all_tiers() && tiers.state(Tier::kHbm, block.at[0]) == pool::SlotState::kFilling;
}

struct BroughtRow;

/// Rows with a block that changed its place or state in a tier, in order; none before start().
class TouchedRows {
 public:
  struct Row {
    RowId row;
    bool ended = false;  ///< it is no more
    friend bool operator==(const Row&, const Row&) = default;
  };
  void start() { on_ = true; }
  void add(const Row& row) {
    if (on_ && (rows_.empty() || rows_.back() != row)) rows_.push_back(row);
  }
  /// The rows that were added since the last call.
  [[nodiscard]] std::vector<Row> take() { return std::exchange(rows_, {}); }

 private:
  std::vector<Row> rows_;
  bool on_ = false;
};

/// The number of a record that is not in use, or of a new one.
template <class RecordId, class Record>
[[nodiscard]] RecordId unused_record(Pieces<Record>& records, std::vector<RecordId>& unused) {
  if (unused.empty()) {
    records.grow(records.size() + 1);
    unused.emplace_back(static_cast<std::uint32_t>(records.size()));
  }
  const RecordId id = unused.back();
  unused.pop_back();
  return id;
}

/// Every block of the node: which slots hold its bytes, and who owns it. A slot that a block gives
/// up is handed to the caller, who alone knows what may still touch it: it goes to Tiers::free or
/// Tiers::hold.
///
/// Source: kvd design (DESIGN.md "Blocks that come and go").
///
/// Sealed blocks that have a key may be shared: several tables name the same ones, and what one of
/// them moves has moved for all, so the tables that name a row are listed beside it, once for all
/// its layer groups. A move costs O(owners); blocks without a key have no such list. A row that its
/// last table has left stays, cached, until it is released.
///
/// Owner: control thread. Errors: none. A call that breaks a state rule is a bug and aborts. Cost:
/// O(1) a block, what changes a place O(owners); usage O(classes of the domain), of all domains
/// O(classes).
class Blocks {
 public:
  explicit Blocks(Tiers& tiers) : tiers_(tiers) {}

  // ---- reading ----
  [[nodiscard]] const Block& block(BlockId id) const {
    KVD_CHECK(id && id.value <= blocks_.size(), "no such block");
    return blocks_[id.value - 1];
  }
  [[nodiscard]] const BlockKind& kind(BlockId id) const {
    KVD_CHECK(id && id.value <= kinds_.size(), "no such block");
    return kinds_[id.value - 1];
  }
  /// None where the tier does not have the block.
  [[nodiscard]] SlotId slot(const BlockTable& table, std::uint32_t i, Tier tier) const {
    return block(table[i]).at[static_cast<std::size_t>(tier)];
  }
  [[nodiscard]] bool has(const BlockTable& table, std::uint32_t i, Tier tier) const {
    return !slot(table, i, tier).none();
  }
  /// Its bytes are on their way from DRAM to HBM.
  [[nodiscard]] bool arriving(const BlockTable& table, std::uint32_t i) const {
    return is_arriving(tiers_, block(table[i]));
  }
  /// Whether HBM lacks its bytes, now or for good.
  [[nodiscard]] bool missing(const BlockTable& table, std::uint32_t i) const {
    return !has(table, i, Tier::kHbm) || arriving(table, i);
  }
  /// Full, and both tiers have the same bytes.
  [[nodiscard]] bool synced(const BlockTable& table, std::uint32_t i) const {
    const Block& found = block(table[i]);
    return found.in_all_tiers() && state(found, Tier::kHbm) == pool::SlotState::kSealed &&
           state(found, Tier::kDram) == pool::SlotState::kSealed;
  }
  /// Another table names it as well.
  [[nodiscard]] bool shared(const BlockTable& table, std::uint32_t i) const {
    return block(table[i]).owners > 1;
  }
  [[nodiscard]] bool live(RowId id) const {
    return id && id.value <= rows_.size() && rows_[id.value - 1].key;
  }
  [[nodiscard]] const Row& row(RowId id) const {
    KVD_CHECK(live(id), "no such row");
    return rows_[id.value - 1];
  }
  /// All its blocks are in the tier, complete.
  [[nodiscard]] bool complete(RowId id, Tier tier) const;
  /// What one domain uses, or all together.
  [[nodiscard]] Usage usage(std::optional<DomainId> domain = {}) const;
  [[nodiscard]] Usage usage(DomainId domain, ClassId model_class) const;
  /// Bytes of cached rows in the tier; in HBM, those on the device.
  [[nodiscard]] Bytes cached(DomainId domain, Tier tier, DeviceId device) const;
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
  /// Ends the blocks of each layer group beyond the first `blocks`. Returns, by tier, the slots of
  /// blocks that nothing else can find. Rows stay with their other tables, or stay cached.
  [[nodiscard]] SlotsByTier truncate(BlockTable& table, std::uint32_t blocks);

  // ---- rows ----
  /// The blocks number `block` of all layer groups, sealed, are found by the key from now on.
  RowId name(BlockTable& table, std::uint32_t block, EntryId key);
  /// The row's blocks become the table's next ones as well. Precondition: it does not name them
  /// yet.
  void share(BlockTable& table, RowId id);
  /// A cached row leaves the tier. Returns its slots there.
  [[nodiscard]] std::vector<SlotId> vacate(RowId id, Tier tier);
  /// Ends a cached row. Returns the slots of its blocks.
  [[nodiscard]] SlotsByTier release(RowId id);
  /// Rows with a block that changed its place or state since the last call. Some may have ended.
  [[nodiscard]] std::vector<RowId> take_moved() { return std::exchange(moved_, {}); }

  /// Slots that blocks have in the tier.
  [[nodiscard]] std::size_t slots(Tier tier) const { return in_[static_cast<std::size_t>(tier)]; }
  /// How often tables name blocks.
  [[nodiscard]] std::size_t references() const { return references_; }
  /// Empty while all sums are those of a walk over all blocks; else the fault in words.
  [[nodiscard]] std::string validate() const;
  /// Checks a table in the same way: it names every block once, and its rows know it.
  [[nodiscard]] std::string validate(const BlockTable& table) const;

 private:
  friend class BlockMoves;
  friend class KeptRows;
  friend std::vector<BlockId> new_blocks(Blocks& blocks, const Taker& taker, std::size_t count);
  friend RowId bring(Blocks& blocks, const BroughtRow& row);
  friend void place(Blocks& blocks, RowId id, Tier tier, const std::vector<SlotId>& slots);

  Block& at(BlockId id) { return blocks_[id.value - 1]; }
  [[nodiscard]] pool::SlotState state(const Block& block, Tier tier) const {
    return tiers_.state(tier, block.at[static_cast<std::size_t>(tier)]);
  }
  [[nodiscard]] Row& changing(RowId id) { return rows_[id.value - 1]; }
  /// Every table that names the block, including `table`.
  template <class F>
  void each_owner(BlockTable& table, const Block& block, F visit);
  void moved(const Block& block) {
    if (!block.row) return;
    moved_.push_back(block.row);
    touched_.add({block.row});
  }
  void count(BlockId id, Tier tier, int sign);
  void count_all(BlockId id, int sign);
  /// The table no longer names its place `i`, a block that has a key.
  void disown(BlockTable& table, std::uint32_t i);
  [[nodiscard]] std::string fault_of_rows() const;

  using Holder = std::pair<DomainId, ClassId>;
  Tiers& tiers_;
  Pieces<Block> blocks_;     ///< by id - 1
  Pieces<BlockKind> kinds_;  ///< likewise
  std::vector<BlockId> unused_;
  Pieces<Row> rows_;  ///< by id - 1; without key: not in use
  std::vector<RowId> unused_rows_;
  std::vector<RowId> moved_;
  TouchedRows touched_;
  std::map<Holder, Usage> usage_;
  std::map<std::pair<DomainId, DeviceId>, Bytes> cached_on_;  ///< in HBM
  std::array<std::size_t, kTiers> in_{};
  std::size_t references_ = 0;
};

/// New blocks that have no owner and are in no tier.
[[nodiscard]] std::vector<BlockId> new_blocks(Blocks& blocks, const Taker& taker,
                                              std::size_t count);

/// A row that comes in without a table.
struct BroughtRow {
  Taker taker;
  std::uint32_t number = 0;  ///< as Row::number
  EntryId key;
  Tier tier = Tier::kDram;
  std::vector<SlotId>
      slots;  ///< its slots there, by layer group, in state filling, with all its bytes
};
/// A cached row that one tier has.
RowId bring(Blocks& blocks, const BroughtRow& row);
/// The row's blocks have all their bytes in these slots of the tier as well (state filling).
/// Precondition: the tier has none of them.
void place(Blocks& blocks, RowId id, Tier tier, const std::vector<SlotId>& slots);

/// Some table that names the row is not parked.
[[nodiscard]] inline bool wanted_in_hbm(const Row& row) {
  return std::any_of(row.owners.begin(), row.owners.end(),
                     [](const BlockTable* owner) { return !owner->parked(); });
}
/// The same for a block of the table.
[[nodiscard]] inline bool wanted_in_hbm(const Blocks& blocks, const BlockTable& table,
                                        std::uint32_t i) {
  const Block& found = blocks.block(table[i]);
  return found.owners > 1 ? wanted_in_hbm(blocks.row(found.row)) : !table.parked();
}
/// Some other table that names the block is not parked.
[[nodiscard]] inline bool wanted_by_others(const Blocks& blocks, const BlockTable& table,
                                           std::uint32_t i) {
  const Block& found = blocks.block(table[i]);
  if (found.owners < 2) return false;
  const std::vector<BlockTable*>& owners = blocks.row(found.row).owners;
  return std::any_of(owners.begin(), owners.end(),
                     [&](const BlockTable* owner) { return owner != &table && !owner->parked(); });
}
/// Only doomed tables and the asker's own name the row.
[[nodiscard]] inline bool is_doomed(const Row& row, const BlockTable* asker = nullptr) {
  return row.owners.size() > (asker == nullptr ? 0 : 1) &&
         std::all_of(row.owners.begin(), row.owners.end(),
                     [&](const BlockTable* owner) { return owner == asker || owner->doomed(); });
}
/// A row that only parked tables name leaves HBM if DRAM has it whole. Returns its slots; none: it
/// stays.
[[nodiscard]] std::vector<SlotId> vacate_parked(Blocks& blocks, RowId id);

}  // namespace kvd::store
