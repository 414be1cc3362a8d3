#include "kvd/store/cache/parked_rows.hpp"

#include <algorithm>

namespace kvd::store {

bool ParkedRows::park(RowId row, const Key& key, EngineId engine) {
  parked_.grow(std::size_t{row.value} + 1);
  std::unique_ptr<Parked>& parked = parked_[row.value];
  if (parked == nullptr) {
    parked = std::make_unique<Parked>();
    parked->table.set_parked(true);
    const std::uint32_t found = cache_.share(parked->table, key.space, {&key.digest, 1});
    KVD_CHECK(found == 1, "a block is parked that is not there");
    ++size_;
  }
  const bool known = std::any_of(parked->by.begin(), parked->by.end(),
                                 [&](const Holder& holder) { return holder.engine == engine; });
  if (known) return false;
  std::vector<RowId>& own = of_[engine];
  parked->by.push_back({engine, static_cast<std::uint32_t>(own.size())});
  own.push_back(row);
  return true;
}

void ParkedRows::unpark(RowId row, std::optional<EngineId> engine, std::vector<SlotId>& free) {
  if (!has(row)) return;
  Parked& parked = *parked_[row.value];
  std::erase_if(parked.by, [&](const Holder& holder) {
    const bool gives_up = !engine || holder.engine == *engine;
    if (gives_up) take_out(holder);
    return gives_up;
  });
  if (!parked.by.empty()) return;
  const SlotsByTier slots = cache_.truncate(parked.table, 0);
  const std::vector<SlotId>& dram = slots[static_cast<std::size_t>(Tier::kDram)];
  free.insert(free.end(), dram.begin(), dram.end());
  parked_[row.value] = nullptr;
  --size_;
}

// The engine's last one stands where the row stood.
void ParkedRows::take_out(const Holder& holder) {
  const auto own = of_.find(holder.engine);
  std::vector<RowId>& rows = own->second;
  const RowId last = rows.back();
  rows[holder.place] = last;
  for (Holder& each : parked_[last.value]->by) {
    if (each.engine == holder.engine) each.place = holder.place;
  }
  rows.pop_back();
  if (rows.empty()) of_.erase(own);
}

RowId ParkedRows::one_of(EngineId engine) const {
  const auto own = of_.find(engine);
  return own == of_.end() ? RowId() : own->second.back();
}

}  // namespace kvd::store
