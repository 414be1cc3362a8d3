#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

#include "ipc/vocabulary/fnv.hpp"
#include "ipc/vocabulary/ids.hpp"

namespace kvd::core {

/// What a domain has of one device. HBM is decided about within a share: no request of one share
/// waits for room in another, unless it needs both.
struct Share {
  DomainId domain;
  DeviceId device;
  friend constexpr auto operator<=>(const Share&, const Share&) = default;
};

/// The devices of an engine: one, or for a tensor-parallel group one for each rank. Several ranks
/// may be on the same device.
class Devices {
 public:
  /// All ranks on the first device.
  Devices() = default;
  explicit Devices(DeviceId device) : distinct_{device} {}
  /// Precondition: not empty.
  explicit Devices(std::vector<DeviceId> by_rank)
      : by_rank_(std::move(by_rank)), distinct_(by_rank_) {
    std::sort(distinct_.begin(), distinct_.end());
    distinct_.erase(std::unique(distinct_.begin(), distinct_.end()), distinct_.end());
  }

  /// Each device once, ascending.
  [[nodiscard]] const std::vector<DeviceId>& all() const { return distinct_; }
  [[nodiscard]] DeviceId first() const { return distinct_.front(); }
  [[nodiscard]] bool several() const { return distinct_.size() > 1; }
  [[nodiscard]] bool has(DeviceId device) const {
    return std::find(distinct_.begin(), distinct_.end(), device) != distinct_.end();
  }
  [[nodiscard]] bool overlap(const Devices& others) const {
    return std::any_of(distinct_.begin(), distinct_.end(),
                       [&](DeviceId device) { return others.has(device); });
  }
  /// How many ranks were named one by one; 0: all are on the first device.
  [[nodiscard]] std::size_t named() const { return by_rank_.size(); }
  [[nodiscard]] DeviceId of_rank(std::uint32_t rank) const {
    return several() ? by_rank_.at(rank) : first();
  }
  /// How many of the `ranks` ranks are on the device.
  [[nodiscard]] std::uint32_t ranks_on(DeviceId device, std::uint32_t ranks) const {
    if (!several()) return device == first() ? ranks : 0;
    return static_cast<std::uint32_t>(std::count(by_rank_.begin(), by_rank_.end(), device));
  }

 private:
  std::vector<DeviceId> by_rank_;
  std::vector<DeviceId> distinct_{DeviceId(0)};
};

/// A number for the devices of an engine's ranks, in their order. A cached row has its slots on
/// these devices, and engines on the same devices find it.
[[nodiscard]] inline std::uint64_t number_of(const Devices& devices) {
  if (!devices.several()) return devices.first().value;
  Fnv1a number;
  for (std::size_t rank = 0; rank < devices.named(); ++rank) {
    const DeviceId device = devices.of_rank(static_cast<std::uint32_t>(rank));
    number.add(device.value + 1);
  }
  return number.value();
}

}  // namespace kvd::core
