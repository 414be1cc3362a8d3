#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "kvd/pool/tier_pool.hpp"

namespace kvd::store {

/// The HBM of the node: a pool for each device. Their slabs are numbered one device after the
/// other, so that a slab, and with it a slot, says whose it is.
///
/// Owner: control thread. Errors: a slab that no device has is a bug and aborts. Cost: O(log
/// devices) for what goes by slab.
class DevicePools {
 public:
  /// `devices`: the pool of each device, without the number of its first slab. The quotas hold on
  /// each.
  DevicePools(const std::vector<pool::TierPool::Config>& devices, const pool::Quotas& quotas) {
    KVD_CHECK(!devices.empty(), "a node without a device");
    pools_.reserve(devices.size());
    for (pool::TierPool::Config device : devices) {
      device.first = SlabIndex(slabs_);
      slabs_ += device.slabs;
      ends_.push_back(slabs_);
      pools_.emplace_back(device, quotas);
    }
  }

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(pools_.size()); }
  /// Adds up all devices.
  [[nodiscard]] std::uint32_t slabs() const { return slabs_; }
  [[nodiscard]] DeviceId device_of(SlabIndex slab) const {
    if (ends_.size() == 1) return DeviceId(0);
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), slab.value);
    KVD_CHECK(end != ends_.end(), "a slab that no device has");
    return DeviceId(static_cast<std::uint32_t>(end - ends_.begin()));
  }
  [[nodiscard]] DeviceId device_of(SlotId slot) const { return device_of(slot.slab()); }

  [[nodiscard]] const pool::TierPool& of(DeviceId device) const { return pools_.at(device.value); }
  [[nodiscard]] pool::TierPool& of(DeviceId device) { return pools_.at(device.value); }
  template <class SlabOrSlot>
  [[nodiscard]] const pool::TierPool& with(SlabOrSlot id) const {
    return of(device_of(id));
  }
  template <class SlabOrSlot>
  [[nodiscard]] pool::TierPool& with(SlabOrSlot id) {
    return of(device_of(id));
  }
  [[nodiscard]] pool::SlotState state(SlotId slot) const { return with(slot).state(slot); }

  [[nodiscard]] auto begin() { return pools_.begin(); }
  [[nodiscard]] auto end() { return pools_.end(); }
  [[nodiscard]] auto begin() const { return pools_.begin(); }
  [[nodiscard]] auto end() const { return pools_.end(); }

  /// Calls visit(pool, its slots) for each stretch of slots on one device.
  template <class F>
  void each(pool::Slots slots, F visit) {
    while (!slots.empty()) {
      const DeviceId device = device_of(slots.front());
      const auto other = [&](SlotId slot) { return device_of(slot) != device; };
      const auto end =
          pools_.size() == 1 ? slots.end() : std::find_if(slots.begin(), slots.end(), other);
      const auto count = static_cast<std::size_t>(end - slots.begin());
      visit(of(device), slots.first(count));
      slots = slots.subspan(count);
    }
  }
  /// Slots of any devices become free, as TierPool::release.
  void release(pool::Slots slots) {
    each(slots, [](pool::TierPool& pool, auto there) { pool.release(there); });
  }

 private:
  std::vector<pool::TierPool> pools_;
  std::vector<std::uint32_t> ends_;  ///< by device: the number after its last slab
  std::uint32_t slabs_ = 0;
};

}  // namespace kvd::store
