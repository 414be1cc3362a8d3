#pragma once

#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/knowledge.hpp"

namespace kvd::core {

/// B_xfer: how much rotation may move. It is a bucket that the link fills at its measured rate and
/// that holds as much as one step may move. Every device has its own.
///
/// Source: SuperInfer sec. 4.2 (the bound); kvd design (its automatic value, the bucket).
///
/// Owner: control thread. Cost: O(1).
class Budget {
 public:
  Budget(Context& context, const Knowledge& knowledge)
      : context_(context), knowledge_(knowledge), buckets_(context.config.hbm.size()) {}

  /// What one step may move: rotation.b_xfer, or what the link carries in a mean step.
  [[nodiscard]] Bytes per_step(DeviceId device) const;
  /// The sum over all links of the engine.
  [[nodiscard]] Bytes per_step(const Session& session) const;
  void refill(DeviceId device);
  /// Drops what the time since the last refill would have added.
  void restart();
  /// The budget may go below zero, since whole requests move.
  void take(DeviceId device, Bytes bytes) {
    buckets_[device.value].left -= static_cast<double>(bytes.value);
  }
  [[nodiscard]] Bytes left(DeviceId device) const {
    return Bytes(static_cast<std::int64_t>(buckets_[device.value].left));
  }

 private:
  struct Bucket {
    TimePoint filled{0};
    double left = 0;
  };

  Context& context_;
  const Knowledge& knowledge_;
  std::vector<Bucket> buckets_;  ///< by device
};

}  // namespace kvd::core
