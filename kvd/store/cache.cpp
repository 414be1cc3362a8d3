#include "kvd/store/cache.hpp"

#include <algorithm>
#include <utility>

namespace kvd::store {

namespace {

constexpr Tier kMemory[kTiers] = {Tier::kHbm, Tier::kDram};

CacheTier cached_in(Tier tier) { return tier == Tier::kHbm ? CacheTier::kHbm : CacheTier::kDram; }
std::size_t number(Tier tier) { return static_cast<std::size_t>(tier); }

void append(std::vector<SlotId>& to, const std::vector<SlotId>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

void Cache::follow() {
  for (const RowId row : blocks_.take_moved()) {
    if (!blocks_.live(row)) continue;
    Index& index = shelf_of(row).index;
    const EntryId entry = blocks_.row(row).key;
    for (const Tier tier : kMemory) {
      const bool whole = blocks_.complete(row, tier);
      if (whole == index.at(entry).in(cached_in(tier))) continue;
      if (whole) {
        (void)index.place(entry, cached_in(tier), Place(row.value));
      } else {
        (void)index.forget(entry, cached_in(tier));
      }
    }
  }
}

Result<bool> Cache::name(BlockTable& table, const NewRow& row, TimePoint now) {
  follow();
  const std::uint32_t groups = table.groups();
  const RowId before =
      row.block == 0 ? RowId() : blocks_.block(table[(row.block - 1) * groups]).row;
  if (row.block > 0 && !before) return false;
  Shelf& shelf = this->shelf(row.space.domain);
  const EntryId parent = before ? blocks_.row(before).key : EntryId();
  const SpaceId space = shelf.index.open(row.space);
  KVD_ASSIGN_OR_RETURN(const EntryId entry,
                       shelf.index.insert({space, parent, row.digest, row.saved}, now));
  if (shelf.rows.contains(entry)) {
    shelf.index.release(entry);
    return false;
  }
  shelf.rows.emplace(entry, blocks_.name(table, row.block, entry));
  follow();
  return true;
}

std::uint32_t Cache::share(BlockTable& table, const KeySpace& space, std::span<const Digest> chain,
                           TimePoint now) {
  KVD_CHECK(table.empty(), "rows that are found come first in a table");
  follow();
  Shelf& shelf = this->shelf(space.domain);
  const Hit hit = shelf.index.lookup(shelf.index.open(space), chain, now);
  for (const EntryId entry : hit.blocks) blocks_.share(table, shelf.rows.at(entry));
  return static_cast<std::uint32_t>(hit.blocks.size());
}

// From the tail: a block goes before those it follows.
SlotsByTier Cache::truncate(BlockTable& table, std::uint32_t blocks) {
  follow();
  std::vector<RowId> left;
  for (std::uint32_t block = blocks; block < table.blocks(); ++block) {
    const RowId row = blocks_.block(table[block * table.groups()]).row;
    if (row) left.push_back(row);
  }
  SlotsByTier slots = blocks_.truncate(table, blocks);
  for (auto row = left.rbegin(); row != left.rend(); ++row) leave(*row, slots);
  return slots;
}

// A table names the row no more.
void Cache::leave(RowId row, SlotsByTier& slots) {
  Shelf& shelf = shelf_of(row);
  const EntryId entry = blocks_.row(row).key;
  if (blocks_.row(row).owners.empty()) {
    for (const Tier tier : kMemory) {
      if (!blocks_.complete(row, tier)) append(slots[number(tier)], blocks_.vacate(row, tier));
    }
    const Entry& known = shelf.index.at(entry);
    if (!known.in(CacheTier::kHbm) && !known.in(CacheTier::kDram)) erase(shelf, row, slots);
  }
  shelf.index.release(entry);
}

void Cache::erase(Shelf& shelf, RowId row, SlotsByTier& slots) {
  shelf.rows.erase(blocks_.row(row).key);
  const SlotsByTier rest = blocks_.release(row);
  for (std::size_t tier = 0; tier < kTiers; ++tier) append(slots[tier], rest[tier]);
}

std::vector<SlotId> Cache::evict(DomainId domain, Tier tier, Bytes needed) {
  follow();
  Shelf& shelf = this->shelf(domain);
  SlotsByTier slots;
  while (needed > Bytes(0)) {
    const EntryId victim = shelf.index.victim(cached_in(tier));
    if (!victim) break;
    const RowId row = shelf.rows.at(victim);
    const bool elsewhere = blocks_.complete(row, tier == Tier::kHbm ? Tier::kDram : Tier::kHbm);
    const Bytes slot_bytes = blocks_.block(blocks_.row(row).blocks.front()).slot_bytes;
    const std::vector<SlotId> left = blocks_.vacate(row, tier);
    needed -= slot_bytes * std::ssize(left);
    append(slots[number(tier)], left);
    if (!elsewhere) erase(shelf, row, slots);
    (void)shelf.index.forget(victim, cached_in(tier));
  }
  return std::move(slots[number(tier)]);
}

std::string Cache::fault_of(const Shelf& shelf) const {
  if (std::string fault = shelf.index.validate(); !fault.empty()) return fault;
  for (const auto& [entry, row] : shelf.rows) {
    if (!blocks_.live(row) || blocks_.row(row).key != entry) return "an entry has another's row";
    if (shelf.index.at(entry).leases != blocks_.row(row).owners.size()) {
      return "an entry has not as many leases as tables name its row";
    }
    for (const Tier tier : kMemory) {
      const Place place = shelf.index.at(entry).at[index(cached_in(tier))];
      if (place && place.value != row.value) return "an entry is where another's row is";
    }
  }
  return {};
}

std::string Cache::validate() const {
  for (const auto& [domain, shelf] : shelves_) {
    if (std::string fault = fault_of(shelf); !fault.empty()) return fault;
  }
  return {};
}

}  // namespace kvd::store
