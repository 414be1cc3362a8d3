#include "kvd/store/placed_rows.hpp"

#include <algorithm>
#include <set>

namespace kvd::store {

std::uint32_t PlacedRows::leading(const KeySpace& space, std::span<const Digest> digests) {
  cache_.follow();
  Index& index = cache_.shelf(space.domain).index;
  const SpaceId id = index.open(space);
  std::uint32_t count = 0;
  for (const Digest& digest : digests) {
    const EntryId entry = index.peek(id, digest);
    if (!entry || !index.at(entry).in(CacheTier::kDram)) break;
    ++count;
  }
  return count;
}

std::optional<std::vector<SlotId>> PlacedRows::find(const KeySpace& space,
                                                    std::span<const Digest> digests,
                                                    const Digest* next) {
  if (leading(space, digests) != digests.size()) return std::nullopt;
  Cache::Shelf& shelf = cache_.shelf(space.domain);
  const Hit hit = shelf.index.lookup_each(shelf.index.open(space), digests, next);
  std::vector<SlotId> slots;
  slots.reserve(digests.size());
  for (const EntryId entry : hit.blocks) {
    const Row& row = cache_.blocks_.row(shelf.rows.at(entry));
    const Block& block = cache_.blocks_.block(row.blocks.front());
    slots.push_back(block.at[static_cast<std::size_t>(Tier::kDram)]);
    cache_.consider_for_disk(space.domain, shelf.index, entry);
  }
  shelf.index.release(hit.blocks);
  return slots;
}

std::vector<EntryId> PlacedRows::store_again(const KeySpace& space,
                                             std::span<const Digest> digests) {
  cache_.follow();
  Index& index = cache_.shelf(space.domain).index;
  const SpaceId id = index.open(space);
  std::set<EntryId> seen;  // a store may name a block twice
  std::vector<EntryId> held;
  for (auto digest = digests.rbegin(); digest != digests.rend(); ++digest) {
    const EntryId entry = index.peek(id, *digest);
    if (!entry || !index.at(entry).in(CacheTier::kDram) || !seen.insert(entry).second) continue;
    index.lease(entry);
    index.store_again(entry);
    cache_.consider_for_disk(space.domain, index, entry);
    held.push_back(entry);
  }
  return held;
}

void PlacedRows::release(const KeySpace& space, const std::vector<EntryId>& held) {
  cache_.shelf(space.domain).index.release(held);
}

std::size_t PlacedRows::cached(const KeySpace& space, const std::vector<EntryId>& held) {
  const Cache::Shelf& shelf = cache_.shelf(space.domain);
  return static_cast<std::size_t>(std::count_if(held.begin(), held.end(), [&](EntryId entry) {
    return cache_.blocks_.row(shelf.rows.at(entry)).owners.empty();
  }));
}

bool PlacedRows::add(const NewBlock& block) {
  const FromDisk row{block.space, block.taker, {block.digest}, {{block.slot}}, block.saved};
  return cache_.adopt(row).empty();
}

RowId PlacedRows::row(const KeySpace& space, const Digest& digest) {
  cache_.follow();
  Cache::Shelf& shelf = cache_.shelf(space.domain);
  const EntryId entry = shelf.index.peek(shelf.index.open(space), digest);
  const bool there = entry && shelf.index.at(entry).in(CacheTier::kDram);
  return there ? shelf.rows.at(entry) : RowId();
}

SlotId PlacedRows::forget(RowId row) {
  if (!cache_.blocks_.live(row) || !cache_.blocks_.row(row).owners.empty()) return {};
  Cache::Shelf& shelf = cache_.shelf_of(row);
  const EntryId entry = cache_.blocks_.row(row).key;
  const std::vector<SlotId> slots = cache_.blocks_.vacate(row, Tier::kDram);
  SlotsByTier rest;
  cache_.erase(shelf, row, rest);
  (void)shelf.index.forget(entry, CacheTier::kDram);
  return slots.front();
}

}  // namespace kvd::store
