#include "kvd/store/blocks/blocks.hpp"

#include <algorithm>
#include <utility>

namespace kvd::store {

using pool::SlotState;

namespace {

constexpr std::size_t index(Tier tier) { return static_cast<std::size_t>(tier); }
constexpr Tier kBoth[kTiers] = {Tier::kHbm, Tier::kDram};

}  // namespace

// ---- sums ----

Usage Blocks::usage(std::optional<DomainId> domain) const {
  Usage sum;
  auto it = domain ? usage_.lower_bound({*domain, ClassId()}) : usage_.begin();
  for (; it != usage_.end() && (!domain || it->first.first == *domain); ++it) sum += it->second;
  return sum;
}

Usage Blocks::usage(DomainId domain, ClassId model_class) const {
  const auto found = usage_.find({domain, model_class});
  return found == usage_.end() ? Usage{} : found->second;
}

void Blocks::count(BlockId id, Tier tier, int sign) {
  const Block& one = block(id);
  const BlockKind& of = kind(id);
  in_[index(tier)] += static_cast<std::size_t>(sign);
  Usage& usage = usage_[{of.domain, of.model_class}];
  auto& sum = one.owners > 0 ? usage.owned : usage.cached;
  sum[index(tier)] += of.slot_bytes * sign;
  if (one.owners > 0 || tier != Tier::kHbm) return;
  const DeviceId device = tiers_.hbm().device_of(one.at[index(tier)]);
  cached_on_[{of.domain, device}] += of.slot_bytes * sign;
}

Bytes Blocks::cached(DomainId domain, Tier tier, DeviceId device) const {
  if (tier == Tier::kDram) return usage(domain).cached[index(tier)];
  const auto found = cached_on_.find({domain, device});
  return found == cached_on_.end() ? Bytes(0) : found->second;
}

void Blocks::count_all(BlockId id, int sign) {
  for (const Tier tier : kBoth) {
    if (!block(id).at[index(tier)].none()) count(id, tier, sign);
  }
}

template <class F>
void Blocks::each_owner(BlockTable& table, const Block& block, F visit) {
  if (!block.row) return visit(table);
  for (BlockTable* owner : changing(block.row).owners) visit(*owner);
}

// ---- blocks ----

// Takes numbers that one table gave up in its order, so that the records of a table are neighbours.
std::vector<BlockId> new_blocks(Blocks& blocks, const Taker& taker, std::size_t count) {
  if (count == 0) return {};
  std::vector<BlockId>& unused = blocks.unused_;
  while (unused.size() < count) {
    blocks.blocks_.grow(blocks.blocks_.size() + 1);
    blocks.kinds_.grow(blocks.blocks_.size());
    unused.emplace_back(static_cast<std::uint32_t>(blocks.blocks_.size()));
  }
  std::vector<BlockId> ids(unused.end() - static_cast<std::ptrdiff_t>(count), unused.end());
  unused.resize(unused.size() - count);
  const BlockKind kind{taker.model_class, taker.domain, taker.slot_bytes};
  for (const BlockId id : ids) blocks.kinds_[id.value - 1] = kind;
  blocks.usage_[{kind.domain, kind.model_class}].blocks += std::ssize(ids);
  return ids;
}

void Blocks::extend(BlockTable& table, const Taker& taker, std::uint32_t count) {
  KVD_CHECK(table.groups_ > 0 && count % table.groups_ == 0, "blocks of some layer groups only");
  table.kind_ = {taker.model_class, taker.domain, taker.slot_bytes};
  for (const BlockId id : new_blocks(*this, taker, count)) {
    at(id).owners = 1;
    table.append(id);
  }
  references_ += count;
}

void Blocks::place(BlockTable& table, std::uint32_t i, Tier tier, SlotId slot) {
  Block& placed = at(table[i]);
  KVD_CHECK(placed.at[index(tier)].none() && !slot.none(), "a block has one slot in a tier");
  placed.at[index(tier)] = slot;
  const bool arrives = is_arriving(tiers_, placed);
  each_owner(table, placed, [&](BlockTable& owner) {
    ++owner.in_[index(tier)];
    owner.moved(tier);
    if (arrives) ++owner.arriving_;
    if (placed.in_all_tiers()) owner.count_doubled(i, 1, placed.owners == 1);
  });
  count(table[i], tier, 1);
  moved(placed);
}

SlotId Blocks::vacate(BlockTable& table, std::uint32_t i, Tier tier) {
  Block& left = at(table[i]);
  if (left.at[index(tier)].none()) return {};
  const bool arrives = is_arriving(tiers_, left);
  each_owner(table, left, [&](BlockTable& owner) {
    if (arrives) --owner.arriving_;
    if (left.in_all_tiers()) owner.count_doubled(i, -1, left.owners == 1);
    --owner.in_[index(tier)];
    owner.moved(tier);
  });
  count(table[i], tier, -1);
  moved(left);
  return std::exchange(left.at[index(tier)], SlotId());
}

SlotId Blocks::relocate(BlockTable& table, std::uint32_t i, Tier tier, SlotId to) {
  Block& shifted = at(table[i]);
  const SlotId from = shifted.at[index(tier)];
  KVD_CHECK(!from.none() && !to.none(), "a block moves from one slot of a tier to another");
  if (tiers_.state(tier, from) == SlotState::kSealed) {
    tiers_.seal(tier, to);
  } else {
    tiers_.open(tier, to);
  }
  each_owner(table, shifted, [&](BlockTable& owner) { owner.moved(tier); });
  if (shifted.row) touched_.add({shifted.row});
  return std::exchange(shifted.at[index(tier)], to);
}

void Blocks::settle(BlockTable& table, std::uint32_t i, Tier tier, bool full) {
  Block& settled = at(table[i]);
  const SlotId slot = settled.at[index(tier)];
  const bool filled = tiers_.state(tier, slot) == SlotState::kFilling;
  const bool seals = full && tiers_.state(tier, slot) != SlotState::kSealed;
  settled.sealed = settled.sealed || full;
  if (!seals && (full || !filled)) return;
  full ? tiers_.seal(tier, slot) : tiers_.open(tier, slot);
  moved(settled);
  // A block that is in one tier alone is neither arriving nor synced.
  if (!settled.in_all_tiers()) return;
  each_owner(table, settled, [&](BlockTable& owner) {
    ++owner.changes_;
    if (tier == Tier::kHbm && filled) --owner.arriving_;
  });
}

SlotsByTier Blocks::truncate(BlockTable& table, std::uint32_t blocks) {
  SlotsByTier slots;
  const std::uint32_t kept = std::min(table.size(), blocks * table.groups_);
  std::uint32_t ended = 0;  // those without a key, whose sums change once for all
  for (std::uint32_t i = kept; i < table.size(); ++i) {
    Block& left = at(table[i]);
    if (left.in_all_tiers()) table.count_doubled(i, -1, left.owners == 1);
    if (table.arriving_ > 0 && is_arriving(tiers_, left)) --table.arriving_;
    if (left.row) {
      disown(table, i);
      continue;
    }
    for (const Tier tier : kBoth) {
      if (!left.at[index(tier)].none()) slots[index(tier)].push_back(left.at[index(tier)]);
    }
    left = {};
    unused_.push_back(table[i]);
    ++ended;
  }
  table.cut(kept);
  if (ended == 0) return slots;
  const auto usage = usage_.find({table.kind_.domain, table.kind_.model_class});
  for (const Tier tier : kBoth) {
    const auto count = std::ssize(slots[index(tier)]);
    if (count == 0) continue;
    in_[index(tier)] -= static_cast<std::size_t>(count);
    usage->second.owned[index(tier)] -= table.kind_.slot_bytes * count;
    table.in_[index(tier)] -= count;
    table.moved(tier);
  }
  references_ -= ended;
  usage->second.blocks -= ended;
  if (usage->second.blocks == 0) usage_.erase(usage);
  return slots;
}

void Blocks::disown(BlockTable& table, std::uint32_t i) {
  Block& left = at(table[i]);
  for (const Tier tier : kBoth) {
    if (left.at[index(tier)].none()) continue;
    --table.in_[index(tier)];
    table.moved(tier);
  }
  --references_;
  std::erase(changing(left.row).owners, &table);
  each_owner(table, left, [](BlockTable& owner) { ++owner.changes_; });
  count_all(table[i], -1);
  --left.owners;
  count_all(table[i], 1);
  if (left.owners == 1 && left.in_all_tiers()) row(left.row).owners.front()->count_alone(i, 1);
}

}  // namespace kvd::store
