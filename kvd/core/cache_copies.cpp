#include "kvd/core/cache_copies.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvd::core {

void CacheCopies::make_ahead() {
  if (!context_.tuning.rotation.eager) return;
  Bytes most = budget_.per_step(DeviceId(0));
  for (std::uint32_t device = 1; device < store_.hbm.count(); ++device) {
    most = std::min(most, budget_.per_step(DeviceId(device)));
  }
  while (copies_.empty() || under_way_ < Bytes(most.value / 4)) {
    const store::RowId row = store_.cache.next_alone();
    if (!row) return;
    start(row);
  }
}

// Rows of a group on several devices are left to the copies that its requests make.
void CacheCopies::start(store::RowId row) {
  const std::vector<store::BlockId>& blocks = store_.blocks.row(row).blocks;
  const auto hbm = [&](store::BlockId id) { return store_.blocks.block(id).at[0]; };
  const DeviceId device = store_.hbm.device_of(hbm(blocks.front()));
  const bool one = std::all_of(blocks.begin(), blocks.end(), [&](store::BlockId id) {
    return store_.hbm.device_of(hbm(id)) == device;
  });
  if (!one) return;
  std::vector<SlotId> to = store_.cache.take_for_copy(row);
  if (to.empty()) return;
  store::RowCopy copy = store_.cache.begin_copy(row, std::move(to));
  CopySlots order;
  order.ticket = context_.orders.next_ticket();
  order.slot_bytes = copy.slot_bytes;
  order.background = true;
  order.domain = copy.domain;
  order.pairs.reserve(copy.from.size());
  for (std::size_t group = 0; group < copy.from.size(); ++group) {
    order.pairs.push_back({copy.from[group], copy.to[group]});
  }
  // A dying engine's blocks are given up whoever reads them.
  store_.tiers.copy_reads(order.ticket, Tier::kHbm, copy.from);
  under_way_ += order.slot_bytes * std::ssize(order.pairs);
  copies_.emplace(order.ticket, std::move(copy));
  context_.orders.add(std::move(order));
}

bool CacheCopies::on_copy(const CopyFinished& finished) {
  const auto ended = copies_.extract(finished.ticket);
  if (ended.empty()) return false;
  const store::RowCopy& copy = ended.mapped();
  under_way_ -= copy.slot_bytes * std::ssize(copy.to);
  if (finished.ok) {
    context_.counters.blocks_synced += copy.to.size();
  } else {
    ++context_.counters.copy_failures;
    context_.note(Note::Level::kError, EngineId(), "a copy of cached blocks failed");
  }
  store_.tiers.free(Tier::kDram, store_.cache.end_copy(copy, finished.ok));
  store_.tiers.copy_ended(finished.ticket);
  return true;
}

std::size_t CacheCopies::slots() const {
  std::size_t sum = 0;
  for (const auto& [ticket, copy] : copies_) sum += copy.to.size();
  return sum;
}

}  // namespace kvd::core
