#include "kvd/store/blocks/block_moves.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvd::store {

namespace {

constexpr std::uint32_t kOfACacheLine = 64 / sizeof(Block);

std::ptrdiff_t doubled(std::span<const Block> blocks) {
  return std::count_if(blocks.begin(), blocks.end(),
                       [](const Block& block) { return block.in_all_tiers(); });
}

}  // namespace

// Records are scattered in memory, so those needed a few steps later are fetched ahead.
void BlockMoves::fetch(const BlockTable& table, std::size_t which) const {
  constexpr std::uint32_t kMost = 64;  // the processor itself prefetches the rest of a longer run
  if (which >= table.neighbours_.size()) return;
  const BlockTable::Neighbours& ahead = table.neighbours_[which];
  const Block* const first = &blocks_.at(ahead.first);
  for (std::uint32_t i = 0; i < std::min(ahead.count, kMost); i += kOfACacheLine) {
    __builtin_prefetch(first + i, 1);
  }
}

template <class Place, class Keyed, class Own>
void BlockMoves::walk(const BlockTable& table, std::size_t count, Place place, Keyed keyed,
                      Own own) const {
  constexpr std::size_t kAhead = 4;
  const std::vector<BlockTable::Neighbours>& all = table.neighbours_;
  const auto holds = [&](std::size_t which, std::uint32_t i) {
    return which < all.size() && i >= all[which].place && i < all[which].end();
  };
  for (std::size_t which = 1; which < kAhead; ++which) fetch(table, which);
  std::size_t which = 0;
  for (std::size_t k = 0, together = 1; k < count; k += together) {
    const std::uint32_t i = place(k);
    if (!holds(which, i)) {
      which = holds(which + 1, i) ? which + 1 : table.neighbours_of(i);
      fetch(table, which + kAhead - 1);
    }
    Block* const first = &blocks_.at(all[which].first) + (i - all[which].place);
    together = 1;
    if (i < table.keyed_ && first->row) {
      keyed(k);
      continue;
    }
    const std::size_t most =
        i < table.keyed_ ? 1 : std::min<std::size_t>(count - k, all[which].end() - i);
    while (together < most && place(k + together) == i + together) ++together;
    own(k, std::span(first, together));
  }
}

// When the blocks of all layer groups are counted, each group counts the same.
void BlockMoves::count_doubled(BlockTable& table, std::uint32_t first, std::uint32_t count,
                               int sign) {
  const std::int64_t whole = sign * std::int64_t{count / table.groups_};
  if (whole != 0) {
    for (std::int64_t& of_group : table.alone_of_) of_group += whole;
  }
  const std::uint32_t end = first + count;
  for (std::uint32_t i = end - count % table.groups_; i < end; ++i) {
    table.alone_of_[i % table.groups_] += sign;
  }
  table.doubled_ += sign * std::int64_t{count};
  table.doubled_alone_ += sign * std::int64_t{count};
}

std::int64_t BlockMoves::count_doubled(BlockTable& table, std::uint32_t first,
                                       std::span<const Block> blocks, int sign) {
  const auto count = doubled(blocks);
  if (count == std::ssize(blocks)) {
    count_doubled(table, first, static_cast<std::uint32_t>(count), sign);
    return count;
  }
  for (std::uint32_t i = 0; count > 0 && i < blocks.size(); ++i) {
    if (blocks[i].in_all_tiers()) count_doubled(table, first + i, 1, sign);
  }
  return count;
}

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
  found.lacking.reserve(count);
  found.synced.reserve(count);
  const auto keyed = [&](std::size_t k) {
    const auto i = static_cast<std::uint32_t>(k);
    if (!blocks_.has(table, i, Tier::kDram)) {
      found.lacking.push_back(i);
    } else if (blocks_.synced(table, i)) {
      found.synced.push_back(i);
    }
  };
  const auto place = [](std::size_t k) { return static_cast<std::uint32_t>(k); };
  walk(table, count, place, keyed, [&](std::size_t k, std::span<const Block> blocks) {
    std::uint32_t i = place(k);
    for (const Block& block : blocks) {
      if (block.at[1].none()) {
        found.lacking.push_back(i);
      } else if (block.sealed && !block.at[0].none()) {
        found.synced.push_back(i);
      }
      ++i;
    }
  });
  return found;
}

template <class Keyed, class Own>
void BlockMoves::change(const BlockTable& table, Places places, Keyed keyed, Own own) {
  walk(
      table, places.size(), [places](std::size_t k) { return places[k]; }, keyed, own);
}

void BlockMoves::count(BlockTable& table, Tier tier, std::int64_t change) {
  if (change == 0) return;
  const auto at = static_cast<std::size_t>(tier);
  const BlockKind& kind = table.kind_;
  blocks_.in_[at] += static_cast<std::size_t>(change);
  blocks_.usage_[{kind.domain, kind.model_class}].owned[at] += kind.slot_bytes * change;
  table.in_[at] += change;
  table.moved(tier);
}

void BlockMoves::place(BlockTable& table, Places places, Tier tier, std::span<const SlotId> slots) {
  KVD_CHECK(places.size() == slots.size(), "each block gets one slot");
  const auto to = static_cast<std::size_t>(tier);
  std::int64_t placed = 0;
  const auto keyed = [&](std::size_t k) { blocks_.place(table, places[k], tier, slots[k]); };
  change(table, places, keyed, [&](std::size_t k, std::span<Block> blocks) {
    bool free = true;
    const SlotId* slot = &slots[k];
    for (Block& block : blocks) {
      free = free && block.at[to].none() && !slot->none();
      block.at[to] = *slot++;
    }
    KVD_CHECK(free, "a block has one slot in a tier");
    placed += std::ssize(blocks);
    const std::int64_t both = count_doubled(table, places[k], blocks, 1);
    if (tier == Tier::kHbm) table.arriving_ += both;
    if (tier == Tier::kHbm || both == 0) return;
    // A full block that DRAM lacked is not counted: HBM has its bytes.
    table.arriving_ += std::count_if(blocks.begin(), blocks.end(), [&](const Block& block) {
      return !block.sealed && is_arriving(blocks_.tiers_, block);
    });
  });
  count(table, tier, placed);
}

std::vector<SlotId> BlockMoves::vacate_own(BlockTable& table, Places places, Tier tier) {
  const auto from = static_cast<std::size_t>(tier);
  std::vector<SlotId> slots(places.size());
  SlotId* next = slots.data();
  std::int64_t left = 0;
  const auto keyed = [&](std::size_t k) {
    if (blocks_.shared(table, places[k]) || !blocks_.has(table, places[k], tier)) return;
    *next++ = blocks_.vacate(table, places[k], tier);
  };
  change(table, places, keyed, [&](std::size_t k, std::span<Block> blocks) {
    count_doubled(table, places[k], blocks, -1);
    if (table.arriving_ > 0) {
      table.arriving_ -= std::count_if(blocks.begin(), blocks.end(), [&](const Block& block) {
        return is_arriving(blocks_.tiers_, block);
      });
    }
    const SlotId* const before = next;
    for (Block& block : blocks) {
      *next = std::exchange(block.at[from], SlotId());
      if (!next->none()) ++next;
    }
    left += next - before;
  });
  slots.resize(static_cast<std::size_t>(next - slots.data()));
  count(table, tier, -left);
  return slots;
}

void BlockMoves::settle(BlockTable& table, Places places, Tier tier, std::uint32_t full) {
  const auto in = static_cast<std::size_t>(tier);
  std::vector<SlotId> sealed, open;
  sealed.reserve(places.size());
  open.reserve(table.groups_);
  std::int64_t both = 0;
  const auto keyed = [&](std::size_t k) {
    blocks_.settle(table, places[k], tier, places[k] < full);
  };
  change(table, places, keyed, [&](std::size_t k, std::span<Block> blocks) {
    const std::uint32_t whole = full - std::min(full, places[k]);
    const std::span<Block> filled = blocks.first(std::min<std::size_t>(whole, blocks.size()));
    for (Block& block : filled) {
      block.sealed = true;
      sealed.push_back(block.at[in]);
    }
    for (const Block& block : blocks.subspan(filled.size())) open.push_back(block.at[in]);
    both += doubled(blocks);
  });
  blocks_.tiers_.seal(tier, sealed);
  blocks_.tiers_.open(tier, open);
  if (both > 0) ++table.changes_;
  if (tier == Tier::kHbm) table.arriving_ -= both;
}

void BlockMoves::written(BlockTable& table, std::uint32_t from, std::uint32_t end,
                         std::uint32_t full) {
  std::vector<SlotId> sealed, open;
  for (std::uint32_t i = from; i < end; ++i) {
    Block& block = blocks_.at(table[i]);
    if (block.row || block.in_all_tiers()) {
      if (!blocks_.missing(table, i)) blocks_.settle(table, i, Tier::kHbm, i < full);
      continue;
    }
    const SlotId slot = block.at[0];
    if (slot.none()) continue;
    const pool::SlotState state = blocks_.tiers_.state(Tier::kHbm, slot);
    if (i < full) block.sealed = true;
    if (i < full && state != pool::SlotState::kSealed) sealed.push_back(slot);
    if (i >= full && state == pool::SlotState::kFilling) open.push_back(slot);
  }
  blocks_.tiers_.seal(Tier::kHbm, sealed);
  blocks_.tiers_.open(Tier::kHbm, open);
}

}  // namespace kvd::store
