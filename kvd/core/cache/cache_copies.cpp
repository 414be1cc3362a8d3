#include "kvd/core/cache/cache_copies.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvd::core {

namespace {

/// Bounds the work that one event gives the control thread: one event can leave thousands of rows
/// in HBM alone.
constexpr std::size_t kMostStarted = 128, kMostUnderWay = 1024;
/// One row may need room for which a whole slab of another class has to leave DRAM. So many other
/// rows may leave per event, and the row is tried for so many events, because other rows may
/// meanwhile fill what they leave.
constexpr std::size_t kMostMadeWay = 512, kMostTries = 64;

}  // namespace

void CacheCopies::make_ahead() {
  Bytes most = budget_.per_step(DeviceId(0));
  for (std::uint32_t device = 1; device < store_.hbm.count(); ++device) {
    most = std::min(most, budget_.per_step(DeviceId(device)));
  }
  std::size_t make_way = kMostMadeWay;
  for (std::size_t i = 0; i < kMostStarted && copies_.size() < kMostUnderWay; ++i) {
    if (!copies_.empty() && under_way_ >= Bytes(most.value / 4)) return;
    const store::RowId row = store_.cache.next_alone();
    if (!row) return;
    if (start(row, make_way) || make_way > 0) {
      tries_ = 0;
      continue;
    }
    tries_ = (tries_ + 1) % kMostTries;
    if (tries_ > 0) store::put_back_alone(store_.cache, row);
    return;
  }
}

// Rows of a group on several devices are left to the copies that the group's requests make.
bool CacheCopies::start(store::RowId row, std::size_t& make_way) {
  const std::vector<store::BlockId>& blocks = store_.blocks.row(row).blocks;
  const auto hbm = [&](store::BlockId id) { return store_.blocks.block(id).at[0]; };
  const DeviceId device = store_.hbm.device_of(hbm(blocks.front()));
  const bool one = std::all_of(blocks.begin(), blocks.end(), [&](store::BlockId id) {
    return store_.hbm.device_of(hbm(id)) == device;
  });
  if (!one) return false;
  std::vector<SlotId> to = store_.cache.take_for_copy(row, make_way);
  if (to.empty()) return false;
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
  // A dying engine's blocks are given up, whoever reads them.
  store_.tiers.copy_reads(order.ticket, Tier::kHbm, copy.from);
  under_way_ += order.slot_bytes * std::ssize(order.pairs);
  copies_.emplace(order.ticket, std::move(copy));
  context_.orders.add(std::move(order));
  return true;
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
