// Cached rows that go to disk, and come from it.
#include <utility>

#include "kvd/store/cache/cache.hpp"

namespace kvd::store {

namespace {

/// Rows of a domain that may wait to be written. Beyond it they are offered when they are asked for
/// again.
constexpr std::size_t kMostOffered = 16384;
/// How many rows one call looks at.
constexpr std::size_t kMostLooks = 16384;

}  // namespace

void Cache::consider_for_disk(DomainId domain, Shelf& shelf, EntryId entry) {
  if (!disk_rule_ || shelf.for_disk.size() >= kMostOffered) return;
  if (!disk_rule_->admits(shelf.index.at(entry), false)) return;
  if (shelf.for_disk.empty()) disk_turns_.push_back(domain);
  shelf.for_disk.insert(entry);
}

void Cache::offer_to_disk(RowId row) {
  if (!disk_rule_ || !blocks_.live(row) || !blocks_.complete(row, Tier::kDram)) return;
  consider_for_disk(domain_of(row), shelf_of(row), blocks_.row(row).key);
}

std::optional<ForDisk> Cache::next_for_disk() {
  for (std::size_t i = 0; i < kMostLooks && !disk_turns_.empty(); ++i) {
    const DomainId domain = disk_turns_.front();
    disk_turns_.pop_front();
    Shelf& shelf = this->shelf(domain);
    if (shelf.for_disk.empty()) continue;  // all of its cached rows have gone
    auto at = shelf.for_disk.upper_bound(shelf.told);
    if (at == shelf.for_disk.end()) at = shelf.for_disk.begin();
    const EntryId entry = shelf.told = *at;
    shelf.for_disk.erase(at);
    if (!shelf.for_disk.empty()) disk_turns_.push_back(domain);
    const RowId row = shelf.rows.find(entry);
    if (!row) continue;
    if (auto next = for_disk(row)) return next;
  }
  return std::nullopt;
}

std::optional<ForDisk> Cache::for_disk(RowId row) {
  if (!blocks_.live(row) || !blocks_.complete(row, Tier::kDram)) return std::nullopt;
  const EntryId entry = blocks_.row(row).key;
  if (!entry) return std::nullopt;
  Shelf& shelf = shelf_of(row);
  const Key key = shelf.index.key(entry);
  // What an engine has parked is useful to that engine alone, and soon.
  if (key.space.placed_by_engines() && !blocks_.row(row).owners.empty()) return std::nullopt;
  ForDisk next{row, shelf.index.at(entry).touches, key.space, key.digest, Bytes(0), {}};
  for (const BlockId each : blocks_.row(row).blocks) {
    next.slot_bytes = blocks_.kind(each).slot_bytes;
    next.dram.push_back(blocks_.block(each).at[static_cast<std::size_t>(Tier::kDram)]);
  }
  return next;
}

// The blocks before them may have left all tiers meanwhile. They are known again without a place,
// and found once a request has computed them.
std::vector<SlotId> Cache::adopt(const FromDisk& rows) {
  follow();
  Shelf& shelf = this->shelf(rows.space.domain);
  const SpaceId space = shelf.index.open(rows.space);
  const std::size_t first = rows.chain.size() - rows.rows.size();
  std::vector<EntryId> leased;
  std::vector<SlotId> rest;
  const auto give_back = [&](const std::vector<SlotId>& slots) {
    rest.insert(rest.end(), slots.begin(), slots.end());
  };
  bool fits = bool(space);
  for (std::size_t i = 0; i < rows.chain.size(); ++i) {
    Result<EntryId> entry = make_error(ErrorCode::kInvalidArgument, "the chain is broken");
    if (fits) {
      const EntryId parent = leased.empty() ? EntryId() : leased.back();
      entry = shelf.index.insert({space, parent, rows.chain[i], rows.saved});
    }
    fits = fits && entry.ok();
    if (fits) leased.push_back(*entry);
    if (i < first) continue;
    if (fits && rows.taker.chain != 0) shelf.index.set_chain(leased.back(), rows.taker.chain);
    const std::vector<SlotId>& slots = rows.rows[i - first];
    if (!fits || shelf.rows.contains(leased.back())) {
      give_back(slots);
      continue;
    }
    const auto number = static_cast<std::uint32_t>(i);
    shelf.rows.add(leased.back(),
                   bring(blocks_, {rows.taker, number, leased.back(), Tier::kDram, slots}));
  }
  follow();
  shelf.index.release(leased);
  return rest;
}

}  // namespace kvd::store
