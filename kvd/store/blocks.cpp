#include "kvd/store/blocks.hpp"

#include <algorithm>
#include <utility>

namespace kvd::store {

using pool::SlotState;

namespace {

constexpr std::size_t index(Tier tier) { return static_cast<std::size_t>(tier); }
constexpr Tier kBoth[kTiers] = {Tier::kHbm, Tier::kDram};

}  // namespace

Usage Blocks::usage(DomainId domain) const {
  const auto found = usage_.find(domain);
  return found == usage_.end() ? Usage{} : found->second;
}

void Blocks::count(const Block& block, Tier tier, int sign) {
  in_[index(tier)] += static_cast<std::size_t>(sign);
  usage_[block.domain].in[index(tier)] += block.slot_bytes * sign;
}

void Blocks::extend(BlockTable& table, const Taker& taker, std::uint32_t count) {
  KVD_CHECK(table.groups_ > 0 && count % table.groups_ == 0, "blocks of some layer groups only");
  table.ids_.reserve(table.ids_.size() + count);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (unused_.empty()) {
      blocks_.emplace_back();
      unused_.emplace_back(static_cast<std::uint32_t>(blocks_.size()));
    }
    const BlockId id = unused_.back();
    unused_.pop_back();
    at(id) = {taker.model_class, taker.domain, taker.slot_bytes, {}, 1, false};
    table.ids_.push_back(id);
  }
  if (count > 0) usage_[taker.domain].blocks += count;
}

void Blocks::place(BlockTable& table, std::uint32_t i, Tier tier, SlotId slot) {
  Block& placed = at(table[i]);
  KVD_CHECK(placed.at[index(tier)].none() && !slot.none(), "a block has one slot in a tier");
  placed.at[index(tier)] = slot;
  ++table.in_[index(tier)];
  table.moved(tier);
  if (placed.in_all_tiers()) table.count_doubled(i, 1);
  count(placed, tier, 1);
}

SlotId Blocks::vacate(BlockTable& table, std::uint32_t i, Tier tier) {
  Block& left = at(table[i]);
  if (left.at[index(tier)].none()) return {};
  if (left.in_all_tiers()) table.count_doubled(i, -1);
  --table.in_[index(tier)];
  table.moved(tier);
  count(left, tier, -1);
  return std::exchange(left.at[index(tier)], SlotId());
}

SlotId Blocks::relocate(BlockTable& table, std::uint32_t i, Tier tier, SlotId to) {
  Block& moved = at(table[i]);
  const SlotId from = moved.at[index(tier)];
  KVD_CHECK(!from.none() && !to.none(), "a block moves from one slot of a tier to another");
  if (tiers_.pool(tier).state(from) == SlotState::kSealed) {
    tiers_.seal(tier, to);
  } else {
    tiers_.open(tier, to);
  }
  table.moved(tier);
  return std::exchange(moved.at[index(tier)], to);
}

void Blocks::settle(BlockTable& table, std::uint32_t i, Tier tier, bool full) {
  Block& settled = at(table[i]);
  const SlotId slot = settled.at[index(tier)];
  const SlotState state = tiers_.pool(tier).state(slot);
  const bool seals = full && state != SlotState::kSealed;
  const bool opens = !full && state == SlotState::kFilling;
  if (seals) tiers_.seal(tier, slot);
  if (opens) tiers_.open(tier, slot);
  settled.sealed = settled.sealed || full;
  // Of a block in one tier nobody asks whether it has arrived or is synced.
  if ((seals || opens) && settled.in_all_tiers()) ++table.changes_;
}

std::array<std::vector<SlotId>, kTiers> Blocks::truncate(BlockTable& table, std::uint32_t blocks) {
  std::array<std::vector<SlotId>, kTiers> slots;
  const std::uint32_t kept = std::min(table.size(), blocks * table.groups_);
  for (std::uint32_t i = kept; i < table.size(); ++i) {
    for (const Tier tier : kBoth) {
      const SlotId slot = vacate(table, i, tier);
      if (!slot.none()) slots[index(tier)].push_back(slot);
    }
    Block& ended = at(table[i]);
    const auto usage = usage_.find(ended.domain);
    if (--usage->second.blocks == 0) usage_.erase(usage);
    ended.owners = 0;
    unused_.push_back(table[i]);
  }
  table.ids_.resize(kept);
  return slots;
}

std::string Blocks::validate() const {
  std::array<std::size_t, kTiers> in{};
  std::map<DomainId, Usage> usage;
  std::size_t unused = 0;
  for (const Block& block : blocks_) {
    if (block.owners == 0) {
      ++unused;
      continue;
    }
    Usage& of = usage[block.domain];
    ++of.blocks;
    for (const Tier tier : kBoth) {
      if (block.at[index(tier)].none()) continue;
      ++in[index(tier)];
      of.in[index(tier)] += block.slot_bytes;
    }
  }
  const auto same = [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.in == b.second.in && a.second.blocks == b.second.blocks;
  };
  if (in != in_ || unused != unused_.size() ||
      !std::equal(usage.begin(), usage.end(), usage_.begin(), usage_.end(), same)) {
    return "blocks are not counted right";
  }
  return {};
}

std::string Blocks::validate(const BlockTable& table) const {
  BlockTable counted(table.groups_);
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    const Block& found = block(table[i]);
    if (found.owners != 1) return "a block has another number of owners than tables name it";
    if (found.at[0].none() && found.at[1].none()) return "a block is in no tier";
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
      counted.in_[tier] += found.at[tier].none() ? 0 : 1;
    }
    if (found.in_all_tiers()) counted.count_doubled(i, 1);
  }
  const bool right = counted.in_ == table.in_ && counted.doubled_ == table.doubled_ &&
                     counted.doubled_of_ == table.doubled_of_;
  return right ? std::string() : "a block table's slots are not counted right";
}

}  // namespace kvd::store
