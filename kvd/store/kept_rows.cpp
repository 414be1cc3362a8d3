#include "kvd/store/kept_rows.hpp"

#include <algorithm>
#include <utility>

namespace kvd::store {

std::vector<SlotId> KeptRows::dram_of(RowId row) const {
  std::vector<SlotId> slots;
  if (!blocks_.live(row) || !blocks_.complete(row, Tier::kDram)) return slots;
  for (const BlockId each : blocks_.row(row).blocks) {
    slots.push_back(blocks_.block(each).at[static_cast<std::size_t>(Tier::kDram)]);
  }
  return slots;
}

void KeptRows::end(RowId row, std::vector<SlotId>& ended) {
  const auto told = told_.extract(row);
  if (told.empty() || told.mapped().waits) return;
  const std::vector<SlotId>& slots = told.mapped().slots;
  ended.insert(ended.end(), slots.begin(), slots.end());
}

// A number that was given back may be another row's within one event.
std::vector<SlotId> KeptRows::take_ended() {
  std::vector<SlotId> ended;
  for (const TouchedRows::Row& touched : blocks_.touched_.take()) {
    const auto known = told_.find(touched.row);
    std::vector<SlotId> now = touched.ended ? std::vector<SlotId>() : dram_of(touched.row);
    if (known != told_.end() && known->second.slots == now) continue;
    end(touched.row, ended);
    if (now.empty()) continue;
    told_[touched.row].slots = std::move(now);
    waiting_.push_back(touched.row);
  }
  return ended;
}

std::optional<KeptRow> KeptRows::next() {
  cache_.follow();
  while (!waiting_.empty()) {
    const RowId id = waiting_.front();
    waiting_.pop_front();
    const auto told = told_.find(id);
    if (told == told_.end() || !told->second.waits || dram_of(id) != told->second.slots) continue;
    told->second.waits = false;
    const Row& row = blocks_.row(id);
    const BlockKind& kind = blocks_.kind(row.blocks.front());
    const Index& index = cache_.shelf(kind.domain).index;
    const Key key = index.key(row.key);
    KeptRow kept{
        key.space,       key.digest,        std::nullopt, row.number, {index.saves(row.key)},
        kind.slot_bytes, told->second.slots};
    if (const EntryId parent = index.at(row.key).parent) kept.parent = index.at(parent).digest;
    return kept;
  }
  return std::nullopt;
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
      entry = shelf.index.insert({shelf.index.open(row.space), before, row.digest, row.saved}, now);
    }
    const bool twice = entry.ok() && shelf.rows.contains(*entry);
    if (twice) shelf.index.release(*entry);
    if (!entry.ok() || twice) {
      rest.push_back(std::move(row));
      continue;
    }
    known[{row.space, row.digest}] = {*entry, row.number};
    const Taker owner{row.space.model_class, row.space.domain, EngineId(), row.slot_bytes};
    const RowId made = bring(blocks_, {owner, row.number, *entry, row.dram});
    shelf.rows.emplace(*entry, made);
    told_[made] = {row.dram, false};
  }
  cache_.follow();
  for (const auto& [key, entry] : known) cache_.shelf(key.space.domain).index.release(entry.first);
  return rest;
}

}  // namespace kvd::store
