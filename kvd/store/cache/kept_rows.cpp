#include "kvd/store/cache/kept_rows.hpp"

#include <algorithm>

namespace kvd::store {

namespace {

std::size_t tier_number(Tier tier) { return static_cast<std::size_t>(tier); }

}  // namespace

KeptRows::Copy KeptRows::copy_of(RowId row) const {
  Copy copy;
  if (!blocks_.live(row)) return copy;
  const bool in_dram = blocks_.complete(row, Tier::kDram);
  if (!in_dram && !(hbm_ && blocks_.complete(row, Tier::kHbm))) return copy;
  copy.tier = in_dram ? Tier::kDram : Tier::kHbm;
  for (const BlockId each : blocks_.row(row).blocks) {
    copy.slots.push_back(blocks_.block(each).at[tier_number(copy.tier)]);
  }
  return copy;
}

void KeptRows::end(RowId row, SlotsByTier& ended) {
  const auto told = told_.extract(row);
  if (told.empty() || told.mapped().waits) return;
  const Copy& copy = told.mapped().copy;
  std::vector<SlotId>& slots = ended[tier_number(copy.tier)];
  slots.insert(slots.end(), copy.slots.begin(), copy.slots.end());
}

// Within one event a number may be given back and become another row's, so ends come first. Each
// remaining row is looked at as it is now, however often it was touched.
SlotsByTier KeptRows::take_ended(TimePoint now) {
  SlotsByTier ended;
  std::vector<RowId> changed;
  for (const TouchedRows::Row& touched : blocks_.touched_.take()) {
    if (touched.ended) end(touched.row, ended);
    changed.push_back(touched.row);
  }
  std::sort(changed.begin(), changed.end());
  changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
  for (const RowId row : changed) {
    const auto known = told_.find(row);
    Copy copy = copy_of(row);
    if (known != told_.end() && known->second.copy == copy) continue;
    end(row, ended);
    if (copy.slots.empty()) continue;
    waiting_[tier_number(copy.tier)].push_back(row);
    told_[row] = {std::move(copy), now, true};
  }
  return ended;
}

// Rows wait in the order in which they came.
std::optional<KeptRow> KeptRows::next(TimePoint hbm_by) {
  cache_.follow();
  for (const Tier tier : {Tier::kDram, Tier::kHbm}) {
    std::deque<RowId>& waiting = waiting_[tier_number(tier)];
    while (!waiting.empty()) {
      const RowId row = waiting.front();
      const auto told = told_.find(row);
      const bool is_there = told != told_.end() && told->second.waits &&
                            told->second.copy.tier == tier && told->second.copy == copy_of(row);
      if (is_there && tier == Tier::kHbm && told->second.since > hbm_by) break;
      waiting.pop_front();
      if (!is_there) continue;
      told->second.waits = false;
      return describe(row, told->second.copy);
    }
  }
  return std::nullopt;
}

KeptRow KeptRows::describe(RowId id, const Copy& copy) {
  const Row& row = blocks_.row(id);
  const BlockKind& kind = blocks_.kind(row.blocks.front());
  Cache::Shelf& shelf = cache_.shelf(kind.domain);
  const Index& index = shelf.index;
  const Key key = index.key(row.key);
  KeptRow kept{key.space,       key.digest, std::nullopt, row.number, {index.saves(row.key)},
               kind.slot_bytes, copy.tier,  copy.slots};
  if (const EntryId parent = index.at(row.key).parent) kept.parent = index.at(parent).digest;
  if (copy.tier == Tier::kHbm && shelf.read.insert(row.key).second) {
    shelf.index.lease(row.key);
    read_.emplace_back(kind.domain, row.key);
  }
  return kept;
}

// A row that was cleared from the cache meanwhile is not leased any more.
bool KeptRows::all_read() {
  bool any = false;
  for (const auto& [domain, entry] : std::exchange(read_, {})) {
    Cache::Shelf& shelf = cache_.shelf(domain);
    if (shelf.read.erase(entry) == 0) continue;
    shelf.index.release(entry);
    any = true;
  }
  return any;
}

std::vector<KeptRow> KeptRows::adopt(std::vector<KeptRow> rows, TimePoint now) {
  cache_.follow();
  std::map<Key, std::pair<EntryId, std::uint32_t>> known;  // and its number
  std::vector<KeptRow> rest;
  for (KeptRow& row : rows) {
    const auto parent = row.parent ? known.find({row.space, *row.parent}) : known.end();
    const bool follows = row.parent
                             ? parent != known.end() && parent->second.second + 1 == row.number
                             : row.number == 0;
    Cache::Shelf& shelf = cache_.shelf(row.space.domain);
    Result<EntryId> entry = make_error(ErrorCode::kNotFound, "its parent is not there");
    if (follows) {
      const EntryId before = row.parent ? parent->second.first : EntryId();
      const SpaceId space = shelf.index.open(row.space);
      if (space) entry = shelf.index.insert({space, before, row.digest, row.saved});
    }
    const bool twice = entry.ok() && shelf.rows.contains(*entry);
    if (twice) shelf.index.release(*entry);
    if (!entry.ok() || twice) {
      rest.push_back(std::move(row));
      continue;
    }
    known[{row.space, row.digest}] = {*entry, row.number};
    const Taker owner{row.space.model_class, row.space.domain, EngineId(), row.slot_bytes};
    const RowId made = bring(blocks_, {owner, row.number, *entry, row.tier, row.slots});
    shelf.rows.add(*entry, made);
    if (row.tier == Tier::kHbm) cache_.alone_.emplace_back(row.space.domain, *entry);
    told_[made] = {{row.tier, std::move(row.slots)}, now, false};
  }
  cache_.follow();
  for (const auto& [key, entry] : known) cache_.shelf(key.space.domain).index.release(entry.first);
  return rest;
}

}  // namespace kvd::store
