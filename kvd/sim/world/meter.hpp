#pragma once

#include "ipc/vocabulary/units.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/sim/world/result.hpp"

namespace kvd::sim {

/// Adds up over virtual time what RunTotals averages.
class Meter {
 public:
  explicit Meter(Bytes hbm_capacity) : capacity_(static_cast<double>(hbm_capacity.value)) {}

  /// Time passes with these swaps under way.
  void pass(TimePoint now) {
    transit_area_ += to_seconds(now - now_) * static_cast<double>(in_transit_.value);
    now_ = now;
  }
  void swap_begins(Bytes bytes) { in_transit_ += bytes; }
  void swap_ends(Bytes bytes) { in_transit_ -= bytes; }
  /// Whether to look at a step's state: the status is expensive, so only one step in kEvery is
  /// looked at.
  [[nodiscard]] bool due() { return steps_++ % kEvery == 0; }
  void sample(const core::ControllerStatus& status) {
    const auto used = [](const pool::TierStats& tier) {
      return 1 - static_cast<double>(tier.free.value) / static_cast<double>(tier.capacity.value);
    };
    hbm_ += used(status.tiers[0]);
    dram_ += used(status.tiers[1]);
    ++samples_;
  }
  void close(Seconds duration, RunTotals& totals) const {
    const auto samples = static_cast<double>(samples_ == 0 ? 1 : samples_);
    totals.hbm_use = hbm_ / samples;
    totals.dram_use = dram_ / samples;
    if (duration > Seconds(0)) totals.hbm_transit = transit_area_ / capacity_ / duration.count();
  }

 private:
  static constexpr std::uint64_t kEvery = 128;

  double capacity_;
  TimePoint now_{0};
  Bytes in_transit_;
  double transit_area_ = 0;
  double hbm_ = 0, dram_ = 0;
  std::uint64_t samples_ = 0, steps_ = 0;
};

}  // namespace kvd::sim
