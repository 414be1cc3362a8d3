#include "kvd/store/cache/placed_rows.hpp"

#include <algorithm>

namespace kvd::store {
namespace {

bool is_pinned(const Index& index, EntryId entry) {
  const auto no_end = static_cast<double>(TimePoint::max().count());
  return index.at(entry).retained && retained_until(index, entry) == no_end;
}

/// The most blocks of a chain that are expected, so that a longer lookup costs no more.
constexpr std::size_t kMostOfChain = ExpectedChains::kPlaces / 2;

}  // namespace

std::uint32_t PlacedRows::leading(const KeySpace& space, std::span<const Digest> digests) {
  cache_.follow();
  Index& index = cache_.shelf(space.domain).index;
  const SpaceId id = index.known(space);
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
  const Hit hit = shelf.index.lookup_each(shelf.index.known(space), digests, next);
  std::vector<SlotId> slots;
  slots.reserve(digests.size());
  for (const EntryId entry : hit.blocks) {
    const Row& row = cache_.blocks_.row(shelf.rows.at(entry));
    const Block& block = cache_.blocks_.block(row.blocks.front());
    slots.push_back(block.at[static_cast<std::size_t>(Tier::kDram)]);
    cache_.consider_for_disk(space.domain, shelf, entry);
  }
  shelf.index.release(hit.blocks);
  return slots;
}

// Prompts that begin alike end differently, so the last block says which chain it is.
void PlacedRows::asked(const KeySpace& space, std::span<const Digest> chain) {
  cache_.follow();
  Index& index = cache_.shelf(space.domain).index;
  const SpaceId id = index.known(space);
  chain = chain.first(std::min(chain.size(), kMostOfChain));
  if (chain.empty() || index.peek(id, chain.back())) return;
  ExpectedChains& expected = cache_.shelf(space.domain).expected;
  const std::uint32_t known = expected.of(chain.back());
  const std::uint32_t number = known != 0 ? known : ++last_chain_;
  bool is_known = true;
  for (const Digest& digest : chain) {
    const EntryId entry = is_known ? index.peek(id, digest) : EntryId();
    is_known = bool(entry);
    if (is_known) index.set_chain(entry, number);
    if (!is_known) expected.expect(digest, number);
  }
}

std::uint32_t PlacedRows::chain_of(const KeySpace& space, std::span<const Digest> digests) const {
  const ExpectedChains& expected = cache_.shelf(space.domain).expected;
  std::uint32_t chain = 0;
  for (auto digest = digests.rbegin(); chain == 0 && digest != digests.rend(); ++digest) {
    chain = expected.of(*digest);
  }
  return chain;
}

std::vector<EntryId> PlacedRows::store_again(const KeySpace& space, std::span<const Digest> digests,
                                             std::uint32_t chain) {
  cache_.follow();
  Cache::Shelf& shelf = cache_.shelf(space.domain);
  Index& index = shelf.index;
  const SpaceId id = index.known(space);
  std::set<EntryId> seen;  // a store may name a block twice
  std::vector<EntryId> held;
  for (auto digest = digests.rbegin(); digest != digests.rend(); ++digest) {
    const EntryId entry = index.peek(id, *digest);
    if (!entry || !index.at(entry).in(CacheTier::kDram) || !seen.insert(entry).second) continue;
    index.lease(entry);
    index.store_again(entry, chain);
    cache_.consider_for_disk(space.domain, shelf, entry);
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

std::set<EntryId> PlacedRows::in_dram(const KeySpace& space, std::span<const Digest> digests) {
  cache_.follow();
  Index& index = cache_.shelf(space.domain).index;
  const SpaceId id = index.known(space);
  std::set<EntryId> there;
  for (const Digest& digest : digests) {
    const EntryId entry = index.peek(id, digest);
    if (entry && index.at(entry).in(CacheTier::kDram)) there.insert(entry);
  }
  return there;
}

Bytes PlacedRows::bytes_of(const KeySpace& space, EntryId entry) {
  return cache_.bytes_on(cache_.shelf(space.domain).rows.at(entry), Tier::kDram, DeviceId());
}

std::size_t PlacedRows::retain(const KeySpace& space, std::span<const Digest> digests,
                               TimePoint until, Bytes most) {
  const std::set<EntryId> there = in_dram(space, digests);
  Index& index = cache_.shelf(space.domain).index;
  for (const EntryId entry : there) {
    if (!is_pinned(index, entry)) let_go(index, entry);
  }
  if (until == TimePoint(0) || retained_with(space, digests) > most) return 0;
  retain_more(space, digests, until);
  return there.size();
}

std::size_t PlacedRows::unpin(const KeySpace& space, std::span<const Digest> digests) {
  const std::set<EntryId> there = in_dram(space, digests);
  for (const EntryId entry : there) let_go(cache_.shelf(space.domain).index, entry);
  return there.size();
}

Bytes PlacedRows::retained_with(const KeySpace& space, std::span<const Digest> digests) {
  const Index& index = cache_.shelf(space.domain).index;
  Bytes bytes = retained(index);
  for (const EntryId entry : in_dram(space, digests)) {
    if (!index.at(entry).retained) bytes += bytes_of(space, entry);
  }
  return bytes;
}

void PlacedRows::retain_more(const KeySpace& space, std::span<const Digest> digests,
                             TimePoint until) {
  Index& index = cache_.shelf(space.domain).index;
  for (const EntryId entry : in_dram(space, digests)) {
    const auto end = static_cast<double>(until.count());
    if (index.at(entry).retained && retained_until(index, entry) >= end) continue;
    let_go(index, entry);
    store::retain(index, entry, end, bytes_of(space, entry));
  }
}

std::size_t PlacedRows::demote(const KeySpace& space, std::span<const Digest> digests,
                               std::uint16_t touches) {
  std::set<EntryId> there = in_dram(space, digests);
  Cache::Shelf& shelf = cache_.shelf(space.domain);
  std::erase_if(there, [&](EntryId entry) { return is_pinned(shelf.index, entry); });
  for (const EntryId entry : there) {
    store::demote(shelf.index, entry, touches);
    cache_.consider_for_disk(space.domain, shelf, entry);
  }
  return there.size();
}

bool PlacedRows::add(const NewBlock& block) {
  const FromDisk row{block.space, block.taker, {block.digest}, {{block.slot}}, block.saved};
  return cache_.adopt(row).empty();
}

RowId PlacedRows::row(const KeySpace& space, const Digest& digest) {
  cache_.follow();
  Cache::Shelf& shelf = cache_.shelf(space.domain);
  const EntryId entry = shelf.index.peek(shelf.index.known(space), digest);
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
