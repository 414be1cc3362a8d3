// Blocks that have a key: named, shared, cached and released.
#include <algorithm>
#include <utility>

#include "kvd/store/blocks/blocks.hpp"

namespace kvd::store {

using pool::SlotState;

bool Blocks::complete(RowId id, Tier tier) const {
  const Row& found = row(id);
  return std::all_of(found.blocks.begin(), found.blocks.end(), [&](BlockId each) {
    const Block& one = block(each);
    return !one.at[static_cast<std::size_t>(tier)].none() && state(one, tier) == SlotState::kSealed;
  });
}

RowId Blocks::name(BlockTable& table, std::uint32_t block, EntryId key) {
  KVD_CHECK(key && block < table.blocks(), "blocks are named that there are not");
  const RowId id = unused_record(rows_, unused_rows_);
  Row& row = changing(id);
  row.key = key;
  row.number = block;
  row.owners = {&table};
  for (std::uint32_t i = block * table.groups_; i < (block + 1) * table.groups_; ++i) {
    Block& named = at(table[i]);
    KVD_CHECK(named.sealed && !named.row, "a block is named that may change, or has a name");
    named.row = id;
    row.blocks.push_back(table[i]);
  }
  table.keyed_ = std::max(table.keyed_, (block + 1) * table.groups_);
  moved_.push_back(id);
  touched_.add({id});
  return id;
}

void Blocks::share(BlockTable& table, RowId id) {
  KVD_CHECK(row(id).blocks.size() == table.groups_, "a row has other layer groups than the table");
  Row& shared = changing(id);
  KVD_CHECK(std::find(shared.owners.begin(), shared.owners.end(), &table) == shared.owners.end(),
            "a table names a block twice");
  KVD_CHECK(table.blocks() == shared.number, "a row is shared at another place than its own");
  for (const BlockId each : shared.blocks) {
    Block& one = at(each);
    const bool doubled = one.in_all_tiers();
    if (doubled && one.owners == 1) shared.owners.front()->count_alone(table.size(), -1);
    count_all(each, -1);
    ++one.owners;
    count_all(each, 1);
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
      if (one.at[tier].none()) continue;
      ++table.in_[tier];
      table.moved(static_cast<Tier>(tier));
    }
    if (doubled) table.count_doubled(table.size(), 1, one.owners == 1);
    if (is_arriving(tiers_, one)) ++table.arriving_;
    table.append(each);
  }
  table.keyed_ = table.size();
  references_ += shared.blocks.size();
  for (BlockTable* owner : shared.owners) ++owner->changes_;
  shared.owners.push_back(&table);
}

std::vector<SlotId> vacate_parked(Blocks& blocks, RowId id) {
  std::vector<SlotId> slots;
  const Row& left = blocks.row(id);
  if (left.owners.empty() || wanted_in_hbm(left) || !blocks.complete(id, Tier::kDram)) return slots;
  BlockTable& table = *left.owners.front();
  for (std::uint32_t group = 0; group < table.groups(); ++group) {
    const SlotId slot = blocks.vacate(table, left.number * table.groups() + group, Tier::kHbm);
    if (!slot.none()) slots.push_back(slot);
  }
  return slots;
}

RowId bring(Blocks& blocks, const BroughtRow& row) {
  const RowId id = unused_record(blocks.rows_, blocks.unused_rows_);
  Row& brought = blocks.changing(id);
  brought.key = row.key;
  brought.number = row.number;
  brought.blocks = new_blocks(blocks, row.taker, row.slots.size());
  for (const BlockId each : brought.blocks) {
    blocks.at(each).sealed = true;
    blocks.at(each).row = id;
  }
  place(blocks, id, row.tier, row.slots);
  return id;
}

void place(Blocks& blocks, RowId id, Tier tier, const std::vector<SlotId>& slots) {
  const Row& placed = blocks.row(id);
  KVD_CHECK(slots.size() == placed.blocks.size(), "a row is placed in a tier as a whole");
  for (std::size_t group = 0; group < slots.size(); ++group) {
    Block& one = blocks.at(placed.blocks[group]);
    if (!placed.owners.empty()) {
      BlockTable& table = *placed.owners.front();
      const std::uint32_t first = placed.number * table.groups();
      const std::uint32_t i = first + static_cast<std::uint32_t>(group);
      blocks.place(table, i, tier, slots[group]);
      blocks.settle(table, i, tier, true);
      continue;
    }
    KVD_CHECK(one.at[static_cast<std::size_t>(tier)].none(), "a block has one slot in a tier");
    one.at[static_cast<std::size_t>(tier)] = slots[group];
    blocks.tiers_.seal(tier, slots[group]);
    blocks.count(placed.blocks[group], tier, 1);
  }
  blocks.moved_.push_back(id);
  blocks.touched_.add({id});
}

std::vector<SlotId> Blocks::vacate(RowId id, Tier tier) {
  KVD_CHECK(row(id).owners.empty(), "a row that a table names leaves by that");
  std::vector<SlotId> slots;
  for (const BlockId each : row(id).blocks) {
    SlotId& slot = at(each).at[static_cast<std::size_t>(tier)];
    if (slot.none()) continue;
    count(each, tier, -1);
    slots.push_back(std::exchange(slot, SlotId()));
  }
  moved_.push_back(id);
  touched_.add({id});
  return slots;
}

SlotsByTier Blocks::release(RowId id) {
  KVD_CHECK(row(id).owners.empty(), "a row is released that a table names");
  SlotsByTier slots;
  for (const BlockId each : row(id).blocks) {
    count_all(each, -1);
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
      if (!at(each).at[tier].none()) slots[tier].push_back(at(each).at[tier]);
    }
    const auto usage = usage_.find({kind(each).domain, kind(each).model_class});
    if (--usage->second.blocks == 0) usage_.erase(usage);
    at(each) = {};
    unused_.push_back(each);
  }
  changing(id) = {};
  unused_rows_.push_back(id);
  touched_.add({id, true});
  return slots;
}

}  // namespace kvd::store
