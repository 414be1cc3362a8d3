#include "kvd/store/block_moves.hpp"

#include <numeric>
#include <utility>

namespace kvd::store {

namespace {

// A record lies anywhere; so many places on, the next ones are asked for.
constexpr std::size_t kAhead = 16;

}  // namespace

std::vector<std::uint32_t> BlockMoves::lacking(const BlockTable& table, std::uint32_t count,
                                               Tier tier) const {
  std::vector<std::uint32_t> places;
  if (table.in(tier) == 0) {
    places.resize(count);
    std::iota(places.begin(), places.end(), 0);
    return places;
  }
  if (table.all_in(tier)) return places;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!blocks_.has(table, i, tier)) places.push_back(i);
  }
  return places;
}

BlockMoves::Copied BlockMoves::copied(const BlockTable& table, std::uint32_t count) const {
  if (table.in(Tier::kDram) == 0) return {lacking(table, count, Tier::kDram), {}};
  Copied found;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(&blocks_.block(table[i + kAhead]));
    const Block& one = blocks_.block(table[i]);
    if (one.at[static_cast<std::size_t>(Tier::kDram)].none()) {
      found.lacking.push_back(i);
    } else if (one.row ? blocks_.synced(table, i) : one.sealed && one.in_all_tiers()) {
      found.synced.push_back(i);
    }
  }
  return found;
}

template <class F>
void BlockMoves::each(const BlockTable& table, Places places, F visit) {
  for (std::size_t k = 0; k < places.size(); ++k) {
    if (k + kAhead < places.size()) __builtin_prefetch(&blocks_.at(table[places[k + kAhead]]), 1);
    visit(places[k], blocks_.at(table[places[k]]));
  }
}

void BlockMoves::count(BlockTable& table, const Block& one, Tier tier, std::int64_t change) {
  const auto at = static_cast<std::size_t>(tier);
  blocks_.in_[at] += static_cast<std::size_t>(change);
  blocks_.usage_[{one.domain, one.model_class}].owned[at] += one.slot_bytes * change;
  table.in_[at] += change;
  table.moved(tier);
}

void BlockMoves::place(BlockTable& table, Places places, Tier tier, std::span<const SlotId> slots) {
  KVD_CHECK(places.size() == slots.size(), "each block gets one slot");
  const auto to = static_cast<std::size_t>(tier);
  const Block* own = nullptr;
  std::int64_t placed = 0;
  auto slot = slots.begin();
  each(table, places, [&](std::uint32_t i, Block& block) {
    if (block.row) return blocks_.place(table, i, tier, *slot++);
    KVD_CHECK(block.at[to].none() && !slot->none(), "a block has one slot in a tier");
    block.at[to] = *slot++;
    own = &block;
    ++placed;
    if (!block.in_all_tiers()) return;
    table.count_doubled(i, 1, true);
    // Of a full block that DRAM lacked, HBM has the bytes.
    if (tier == Tier::kHbm || (!block.sealed && is_arriving(blocks_.tiers_, block)))
      ++table.arriving_;
  });
  if (own != nullptr) count(table, *own, tier, placed);
}

std::vector<SlotId> BlockMoves::vacate_own(BlockTable& table, Places places, Tier tier) {
  const auto from = static_cast<std::size_t>(tier);
  std::vector<SlotId> slots;
  slots.reserve(places.size());
  const Block* own = nullptr;
  std::int64_t left = 0;
  each(table, places, [&](std::uint32_t i, Block& block) {
    if (block.owners > 1 || block.at[from].none()) return;
    if (block.row) return slots.push_back(blocks_.vacate(table, i, tier));
    if (block.in_all_tiers()) {
      table.count_doubled(i, -1, true);
      if (table.arriving_ > 0 && is_arriving(blocks_.tiers_, block)) --table.arriving_;
    }
    slots.push_back(std::exchange(block.at[from], SlotId()));
    own = &block;
    ++left;
  });
  if (own != nullptr) count(table, *own, tier, -left);
  return slots;
}

void BlockMoves::settle(BlockTable& table, Places places, Tier tier, std::uint32_t full) {
  const auto in = static_cast<std::size_t>(tier);
  each(table, places, [&](std::uint32_t i, Block& block) {
    if (block.row) return blocks_.settle(table, i, tier, i < full);
    if (i < full) {
      blocks_.tiers_.seal(tier, block.at[in]);
      block.sealed = true;
    } else {
      blocks_.tiers_.open(tier, block.at[in]);
    }
    if (!block.in_all_tiers()) return;
    ++table.changes_;
    if (tier == Tier::kHbm) --table.arriving_;
  });
}

}  // namespace kvd::store
