// Cached rows that go to disk, and come from it.
#include <utility>

#include "kvd/store/cache.hpp"

namespace kvd::store {

namespace {

/// Rows that may wait to be written. Beyond it they are offered when they are asked for again.
constexpr std::size_t kMostOffered = 65536;

}  // namespace

void Cache::consider_for_disk(DomainId domain, const Index& index, EntryId entry) {
  if (!disk_rule_ || for_disk_.size() >= kMostOffered) return;
  if (disk_rule_->admits(index.at(entry), false)) for_disk_.emplace_back(domain, entry);
}

void Cache::offer_to_disk(RowId row) {
  if (!disk_rule_ || !blocks_.live(row) || !blocks_.complete(row, Tier::kDram)) return;
  consider_for_disk(domain_of(row), shelf_of(row).index, blocks_.row(row).key);
}

std::optional<ForDisk> Cache::next_for_disk() {
  while (!for_disk_.empty()) {
    const auto [domain, entry] = for_disk_.front();
    for_disk_.pop_front();
    const Shelf& shelf = this->shelf(domain);
    const RowId row = shelf.rows.find(entry);
    if (!row || !blocks_.complete(row, Tier::kDram)) continue;
    const Key key = shelf.index.key(entry);
    // What an engine has parked is of use to that one alone, and soon.
    if (key.space.placed_by_engines() && !blocks_.row(row).owners.empty()) continue;
    ForDisk next{row, key.space, key.digest, Bytes(0), {}};
    for (const BlockId each : blocks_.row(row).blocks) {
      next.slot_bytes = blocks_.kind(each).slot_bytes;
      next.dram.push_back(blocks_.block(each).at[static_cast<std::size_t>(Tier::kDram)]);
    }
    return next;
  }
  return std::nullopt;
}

// Blocks before them may have left all tiers meanwhile: they are known again, without a place, and
// found once somebody has computed them.
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
  bool fits = true;
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
