#include "kvd/sim/world/disk.hpp"

#include <algorithm>

namespace kvd::sim {

std::uint32_t Disk::slots(const core::DiskShape& shape) const {
  const Bytes row = shape.slot_bytes * shape.groups;
  return static_cast<std::uint32_t>(std::min<std::int64_t>(model_.size / row, UINT32_MAX));
}

Nanoseconds Disk::service(const core::DiskBlock& block, TimePoint now) const {
  const Bytes bytes = block.slot_bytes * std::ssize(block.dram);
  const bool slow = model_.slow_from && now - origin_ >= *model_.slow_from;
  const double rate = model_.bytes_per_s / (slow ? model_.slow_times : 1);
  return whole(Seconds(static_cast<double>(bytes.value) / rate));
}

Disk::Answer Disk::write(const core::WriteDisk& order, TimePoint now) {
  const core::DiskBlock& block = order.block;
  slots_[{block.disk, block.slot}] = {block.domain, block.name, ++generation_};
  writes_until_ = std::max(writes_until_, now) + service(block, now);
  return {writes_until_ + whole(model_.latency), {order.ticket, true, generation_, false, false}};
}

Disk::Answer Disk::read(const core::ReadDisk& order, TimePoint now) {
  const core::DiskBlock& block = order.block;
  const Slot& slot = slots_[{block.disk, block.slot}];
  if (slot.name != block.name || slot.domain != block.domain ||
      slot.generation != order.generation) {
    return {now + whole(model_.latency), {order.ticket, false, 0, true, false}};
  }
  const TimePoint deadline = now + block.patience;
  const TimePoint begins = std::max(reads_until_, now);
  if (begins >= deadline) return {deadline, {order.ticket, false, 0, false, false}};
  reads_until_ = begins + service(block, now);
  const TimePoint ends = reads_until_ + whole(model_.latency);
  if (ends > deadline) return {deadline, {order.ticket, false, 0, false, false}};
  return {ends, {order.ticket, true, 0, false, false}};
}

}  // namespace kvd::sim
